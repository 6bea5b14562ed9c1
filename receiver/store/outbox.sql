
-- Follow-up events that the projection has emitted, written with the effect of the event
-- that they follow from. They are forwarded to another publisher in the order of the key.
-- A row waits until it is forwarded, or a person has given it up.
CREATE TABLE counterfoil_outbox (
    sequence           INTEGER NOT NULL CHECK (sequence >= 0),
    number             INTEGER NOT NULL CHECK (number >= 0),
    key                TEXT    NOT NULL,
    type               TEXT    NOT NULL,
    subject            TEXT    NOT NULL,
    content_type       TEXT    NOT NULL,
    json               INTEGER NOT NULL CHECK (json IN (0, 1)),
    data               BLOB    NOT NULL,
    time               TEXT,
    first_attempt_time TEXT,
    expected_version   INTEGER,
    forwarded_log_id   TEXT,
    forwarded_sequence INTEGER,
    given_up           TEXT,
    PRIMARY KEY (sequence, number),
    CHECK ((forwarded_log_id IS NULL) = (forwarded_sequence IS NULL)),
    CHECK (forwarded_sequence IS NULL OR given_up IS NULL)
) STRICT, WITHOUT ROWID;
CREATE INDEX counterfoil_outbox_pending ON counterfoil_outbox (sequence, number)
WHERE forwarded_sequence IS NULL AND given_up IS NULL;
-- What it takes to see whether the other log still has what it has given a receipt for.
CREATE INDEX counterfoil_outbox_forwarded ON counterfoil_outbox (forwarded_log_id, forwarded_sequence)
WHERE forwarded_sequence IS NOT NULL;
