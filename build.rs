//! Compiles the proto without a protoc: protox parses it, tonic makes the services, pbjson the proto JSON.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/wren/v1/wren.proto");
    let descriptors = protox::compile(["wren/v1/wren.proto"], ["proto"])?;
    let bytes = descriptors.encode_to_vec();
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("wren_descriptor.bin"), &bytes)?;
    tonic_prost_build::configure()
        .compile_well_known_types(true)
        .extern_path(".google.protobuf", "::pbjson_types")
        .compile_fds(descriptors)?;
    pbjson_build::Builder::new().register_descriptors(&bytes)?.preserve_proto_field_names().emit_fields().build(&[".wren.v1"])?;
    Ok(())
}
