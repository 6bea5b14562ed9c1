//! What must hold, told one theme a file.

mod fingerprint;
