//! Compiles `rollwright/v1/*.proto` without a system `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=rollwright");
    let files = [
        "rollwright/v1/fault.proto",
        "rollwright/v1/gpu.proto",
        "rollwright/v1/action.proto",
        "rollwright/v1/agent.proto",
    ];
    let descriptors = protox::compile(files, ["."])?;
    tonic_prost_build::configure()
        .build_client(std::env::var_os("CARGO_FEATURE_CLIENT").is_some())
        .build_server(std::env::var_os("CARGO_FEATURE_SERVER").is_some())
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}
