//! The generated code of `proto/` is committed, so that building the server needs no protobuf compiler. It must be what the
//! compiler makes of the files today.

use std::fs;
use std::path::Path;

const SERVICE: &str = "envoy/service/ratelimit/v3/rls.proto";

#[test]
fn the_committed_code_is_what_the_compiler_makes_of_the_files() {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("proto");
    fs::create_dir_all(&output).unwrap();
    let mut compiler = protox::Compiler::new([&proto]).unwrap();
    compiler.include_imports(true).open_file(SERVICE).unwrap();
    fs::write(output.join("envoy.bin"), compiler.encode_file_descriptor_set()).unwrap();
    prost_build::Config::new()
        .out_dir(&output)
        .include_file("envoy.rs")
        .compile_fds(compiler.file_descriptor_set())
        .unwrap();
    let committed = proto.join("generated");
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    };
    assert_eq!(names(&committed), names(&output));
    for name in names(&output) {
        assert!(
            fs::read(committed.join(&name)).unwrap() == fs::read(output.join(&name)).unwrap(),
            "{name:?} is outdated: copy {} to {}",
            output.display(),
            committed.display()
        );
    }
}
