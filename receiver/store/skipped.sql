-- Events that were set aside: the ledger has them as SKIPPED. They stay here, and their effect
-- can be made later.
CREATE TABLE counterfoil_skipped (
    sequence      INTEGER NOT NULL PRIMARY KEY CHECK (sequence >= 0),
    reason        TEXT    NOT NULL,   -- why, as in the ledger
    skipped_at    INTEGER NOT NULL,   -- milliseconds since the Unix epoch, by the receiver's clock
    key           TEXT    NOT NULL,
    type          TEXT    NOT NULL,
    subject       TEXT    NOT NULL,
    event         BLOB    NOT NULL,   -- counterfoil.v1.Event, as the publisher stores it
    fault         TEXT    NOT NULL,   -- what it could not be applied for
    applied_at    INTEGER,            -- when its effect was made after all
    applied_after INTEGER,            -- the cursor's sequence then
    applied_turn  INTEGER UNIQUE,     -- how many had been applied later before it
    CHECK ((applied_at IS NULL) = (applied_after IS NULL)
        AND (applied_at IS NULL) = (applied_turn IS NULL))
) STRICT;

CREATE INDEX counterfoil_skipped_waiting ON counterfoil_skipped (sequence)
    WHERE applied_at IS NULL;
