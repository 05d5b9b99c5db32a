//! The generated code of `proto/` is committed, so that building the server needs no protobuf compiler. It must be what the
//! compiler makes of the files today.

use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::Type;
use std::fs;
use std::path::Path;

const SERVICE: &str = "envoy/service/ratelimit/v3/rls.proto";

/// A header value need not be UTF-8, and Envoy sends it as it is. On the wire a string and bytes are the same; clients of
/// reflection see the string.
fn read_entries_as_bytes(files: &mut FileDescriptorSet) {
    let messages = files.file.iter_mut().flat_map(|file| &mut file.message_type);
    let descriptor = messages.filter(|message| message.name() == "RateLimitDescriptor");
    let nested = descriptor.flat_map(|message| &mut message.nested_type);
    let entry = nested.filter(|message| message.name() == "Entry");
    for field in entry.flat_map(|message| &mut message.field) {
        field.set_type(Type::Bytes);
    }
}

#[test]
fn the_committed_code_is_what_the_compiler_makes_of_the_files() {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("proto");
    fs::create_dir_all(&output).unwrap();
    let mut compiler = protox::Compiler::new([&proto]).unwrap();
    compiler.include_imports(true).open_file(SERVICE).unwrap();
    fs::write(output.join("envoy.bin"), compiler.encode_file_descriptor_set()).unwrap();
    let mut files = compiler.file_descriptor_set();
    read_entries_as_bytes(&mut files);
    prost_build::Config::new()
        .out_dir(&output)
        .include_file("envoy.rs")
        .bytes([".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry"])
        .compile_fds(files)
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
