//! Compiles the messages of `proto/` that front ends speak, and their description for those who ask over reflection.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_file(SERVICE)?;
    #[expect(clippy::disallowed_methods, reason = "cargo says by a variable where to write")]
    let out = std::env::var_os("OUT_DIR").ok_or("cargo names no folder to write to")?;
    let descriptor_set = PathBuf::from(out).join("envoy.bin");
    std::fs::write(descriptor_set, compiler.encode_file_descriptor_set())?;
    prost_build::Config::new()
        .include_file("envoy.rs")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

const SERVICE: &str = "envoy/service/ratelimit/v3/rls.proto";
