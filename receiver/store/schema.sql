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
