//! What projection files make of a history, held against models that were written
//! without them: plain Python, no SQL (`tests/models/`). [`history`] makes events up,
//! [`live`] lets a real publisher and a real receiver live them while both are killed,
//! [`compare`] asks the model and compares every table and every row of the ledger,
//! [`pages`] reads a table as callers do.

mod compare;
mod history;
mod live;
mod pages;
