//! The durability rules of the contract, each tried on the real programs: what is
//! synced before anything is said, disks that fail, disks that are full, and a
//! death at every system call.

mod barrier;
mod failing_disk;
mod full_disk;
mod killed_anywhere;
