//! Turns `proto/` into Rust. protox compiles the files, so no protoc is needed.

use std::{env, error::Error, fs, path::Path};

use prost_types::FileDescriptorSet;

/// Files without a service that is generated once more.
const ELSEWHERE: [&str; 4] = [
    "counterfoil/v1/publisher_admin.proto",
    "counterfoil/v1/receiver.proto",
    "counterfoil/v1/receiver_admin.proto",
    "counterfoil/v1/snapshot.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/counterfoil");
    println!("cargo:rerun-if-changed=proto/google");
    let files = [
        "counterfoil/v1/event.proto",
        "counterfoil/v1/publisher.proto",
        "counterfoil/v1/publisher_admin.proto",
        "counterfoil/v1/receiver.proto",
        "counterfoil/v1/receiver_admin.proto",
        "counterfoil/v1/snapshot.proto",
    ];
    // With comments and imports: this set also answers reflection.
    let descriptors = protox::Compiler::new(["proto"])?
        .include_imports(true)
        .include_source_info(true)
        .open_files(files)?
        .file_descriptor_set();
    let out = env::var("OUT_DIR")?;
    fs::write(
        Path::new(&out).join("counterfoil.bin"),
        prost::Message::encode_to_vec(&descriptors),
    )?;
    tonic_prost_build::configure()
        .bytes(".counterfoil.v1")
        .btree_map(".counterfoil.v1")
        .extern_path(".google.rpc", "::tonic_types::pb")
        .compile_fds(descriptors.clone())?;
    served(descriptors, &Path::new(&out).join("served"))
}

/// The publisher's service once more, as the services themselves speak it: with a message of
/// Replay that carries stored bytes. All other messages are those generated above.
fn served(mut descriptors: FileDescriptorSet, out: &Path) -> Result<(), Box<dyn Error>> {
    descriptors.file.retain(|file| !ELSEWHERE.contains(&file.name()));
    fs::create_dir_all(out)?;
    tonic_prost_build::configure()
        .out_dir(out)
        .extern_path(".google.rpc", "::tonic_types::pb")
        .extern_path(".counterfoil.v1", "crate::proto::pb")
        .extern_path(".counterfoil.v1.ReplayResponse", "crate::proto::stored::ReplayResponse")
        .compile_fds(descriptors)?;
    Ok(())
}
