//! The contract between the services, and between them and their callers.

pub mod backoff;
pub mod chain;
pub mod crash;
pub mod event;
pub mod inventory;
pub mod limits;
pub mod outcome;
pub mod publishing;
pub mod refusal;
pub mod snapshot;
pub mod stored;
pub mod surrogates;
pub mod wire;

/// The messages and services of `counterfoil.v1`, generated from the `.proto` files.
#[allow(missing_docs, clippy::all)] // generated; its comments stand in the .proto files
pub mod pb {
    tonic::include_proto!("counterfoil.v1");

    /// The compiled `.proto` files with their imports, for reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/counterfoil.bin"));
}

/// The publisher's service as it is served, and as it is called by whoever checks what comes: a
/// Replay answers with [`stored`] frames.
#[allow(missing_docs, clippy::all)] // generated
pub mod served {
    include!(concat!(env!("OUT_DIR"), "/served/counterfoil.v1.rs"));
}
