-- What was done with every sequence. All of one log, the one in counterfoil_meta: so the keys
-- are without its name, and a row goes to the end of the table, not into a tree of texts.
CREATE TABLE counterfoil_ledger (
    log         TEXT    NOT NULL,
    sequence    INTEGER NOT NULL PRIMARY KEY CHECK (sequence >= 0),
    key         TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    outcome     TEXT    NOT NULL  -- not IN: SQLite would build a table of the words for each row
        CHECK (outcome = 'APPLIED' OR outcome = 'IGNORED' OR outcome = 'REJECTED'
            OR outcome = 'DUPLICATE' OR outcome = 'SKIPPED'),
    reason      TEXT,              -- why, for REJECTED and SKIPPED
    result      TEXT,              -- what the projection gave, JSON
    applied_at  INTEGER NOT NULL   -- milliseconds since the Unix epoch, by the receiver's clock
) STRICT;

-- One row for each key has the say. Rows that only note that the key came again do not count.
CREATE UNIQUE INDEX counterfoil_ledger_key ON counterfoil_ledger (key)
    WHERE outcome <> 'DUPLICATE' AND reason IS NOT 'key_conflict';
