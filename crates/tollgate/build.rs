//! Compresses the files of the dashboard, `src/ui`, into the program, with a table of them for `src/ui.rs`.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new("src/ui");
    #[expect(
        clippy::disallowed_methods,
        reason = "Cargo names the output directory of a build script in its environment"
    )]
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(root, &mut files)?;
    // The digest of the files must not depend on the order of a folder.
    files.sort();
    let mut table = "&[\n".to_owned();
    for (index, path) in files.iter().enumerate() {
        println!("cargo::rerun-if-changed={}", path.display());
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&fs::read(path)?)?;
        let packed = out.join(format!("ui-{index}.gz"));
        fs::write(&packed, encoder.finish()?)?;
        let parts: Vec<&str> = path
            .strip_prefix(root)?
            .iter()
            .filter_map(|part| part.to_str())
            .collect();
        writeln!(table, "    ({:?}, include_bytes!({packed:?})),", parts.join("/"))?;
    }
    table.push_str("]\n");
    fs::write(out.join("ui_files.rs"), table)?;
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => collect(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}
