-- The receiver's own tables. A projection's tables stand beside them.

CREATE TABLE counterfoil_meta (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The last event applied; no row: nothing applied yet.
CREATE TABLE counterfoil_cursor (
    log      TEXT    NOT NULL PRIMARY KEY,
    log_id   TEXT    NOT NULL,
    sequence INTEGER NOT NULL CHECK (sequence >= 0),
    chain    BLOB    NOT NULL CHECK (length(chain) = 32)
) STRICT, WITHOUT ROWID;

-- What was done with every sequence.
CREATE TABLE counterfoil_ledger (
    log         TEXT    NOT NULL,
    sequence    INTEGER NOT NULL CHECK (sequence >= 0),
    key         TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    outcome     TEXT    NOT NULL  -- not IN: SQLite would build a table of the words for each row
        CHECK (outcome = 'APPLIED' OR outcome = 'IGNORED' OR outcome = 'REJECTED'
            OR outcome = 'DUPLICATE'),
    reason      TEXT,              -- why, for REJECTED
    result      TEXT,              -- what the projection gave, JSON
    applied_at  INTEGER NOT NULL,  -- milliseconds since the Unix epoch, by the receiver's clock
    PRIMARY KEY (log, sequence)
) STRICT, WITHOUT ROWID;

-- One row for each key has the say. Rows that only note that the key came again do not count.
CREATE UNIQUE INDEX counterfoil_ledger_key ON counterfoil_ledger (log, key)
    WHERE outcome <> 'DUPLICATE' AND reason IS NOT 'key_conflict';
