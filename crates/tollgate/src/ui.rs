//! The files of the dashboard, which the build compresses into the program. It knows no HTTP.
//!
//! `index.html` names all others under the digest of them all, so that those never change under their address.

use crate::control::model::Digest;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The files of a dashboard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UiFiles {
    /// Those of the program.
    Packed,
    /// Those of a folder, read again for each request: for development.
    Folder(PathBuf),
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UiFile {
    /// Its media type.
    pub content_type: &'static str,
    /// Its bytes, compressed with gzip.
    pub gzip: Cow<'static, [u8]>,
}

impl UiFiles {
    /// The page.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn page(&self) -> io::Result<UiFile> {
        let gzip = match self {
            Self::Packed => PAGE.as_deref().map(Cow::Borrowed).unwrap_or_default(),
            Self::Folder(folder) => page(&fs::read(folder.join(INDEX))?, FOLDER_DIGEST)?.into(),
        };
        Ok(UiFile {
            content_type: content_type(INDEX),
            gzip,
        })
    }

    /// A file, under the digest that the page names; none if there is no such file, or if it belongs to another build.
    pub fn file(&self, digest: &str, path: &str) -> Option<UiFile> {
        let gzip = match self {
            Self::Packed => {
                let (_, gzip) = FILES.iter().find(|(name, _)| *name == path && *name != INDEX)?;
                (digest == *DIGEST).then_some(Cow::Borrowed(*gzip))?
            }
            Self::Folder(folder) => {
                let is_plain =
                    |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains(['\\', ':', '\0']);
                let is_inside = digest == FOLDER_DIGEST && path.split('/').all(is_plain);
                let bytes = fs::read(folder.join(is_inside.then_some(path)?)).ok()?;
                pack(&bytes).ok()?.into()
            }
        };
        Some(UiFile {
            content_type: content_type(path),
            gzip,
        })
    }

    /// True if a file never changes under its address.
    pub fn is_immutable(&self) -> bool {
        *self == Self::Packed
    }
}

impl UiFile {
    /// Its bytes, for a client that reads no gzip.
    ///
    /// # Errors
    /// Bytes that are no gzip.
    pub fn plain(&self) -> io::Result<Vec<u8>> {
        unpack(&self.gzip)
    }
}

/// The page with the digest in its addresses, compressed.
fn page(text: &[u8], digest: &str) -> io::Result<Vec<u8>> {
    let text = String::from_utf8_lossy(text).replace(PLACEHOLDER, digest);
    pack(text.as_bytes())
}

fn pack(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

fn unpack(gzip: &[u8]) -> io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    GzDecoder::new(gzip).read_to_end(&mut plain)?;
    Ok(plain)
}

fn content_type(path: &str) -> &'static str {
    match Path::new(path).extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

/// Names with their compressed bytes, sorted.
static FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/ui_files.rs"));

/// The first half of the digest of all names and files.
static DIGEST: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = Sha256::new();
    for (name, gzip) in FILES {
        hasher.update(name.as_bytes());
        hasher.update([0]);
        hasher.update(gzip);
    }
    let digest: [u8; 32] = hasher.finalize().into();
    Digest(digest).to_string().chars().take(32).collect()
});

/// The page of the program; none only if the build packed something that is no gzip, which a test rules out.
static PAGE: LazyLock<Option<Vec<u8>>> = LazyLock::new(|| {
    let (_, gzip) = FILES.iter().find(|(name, _)| *name == INDEX)?;
    page(&unpack(gzip).ok()?, &DIGEST).ok()
});

const INDEX: &str = "index.html";
/// The digest in the source of the page.
const PLACEHOLDER: &str = "DIGEST";
/// The digest of files that may change.
const FOLDER_DIGEST: &str = "folder";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_files_that_exist_under_the_digest() {
        let page = String::from_utf8(UiFiles::Packed.page().unwrap().plain().unwrap()).unwrap();
        assert!(!page.contains(PLACEHOLDER), "{page}");
        let prefix = format!("\"a/{}/", *DIGEST);
        let named: Vec<&str> = page
            .split(&prefix)
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        assert!(named.contains(&"app.js") && named.contains(&"app.css"), "{page}");
        for path in named {
            assert!(UiFiles::Packed.file(&DIGEST, path).is_some(), "{path}");
        }
    }

    #[test]
    fn every_file_is_as_in_the_source_and_has_a_type() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ui");
        for (name, _) in FILES.iter().filter(|(name, _)| *name != INDEX) {
            let file = UiFiles::Packed.file(&DIGEST, name).unwrap();
            assert_eq!(file.plain().unwrap(), fs::read(source.join(name)).unwrap(), "{name}");
            assert_ne!(file.content_type, content_type(""), "{name}");
        }
    }

    #[test]
    fn a_file_of_another_build_or_outside_is_not_there() {
        for (digest, path) in [
            (&**DIGEST, "nowhere.js"),
            ("0123456789abcdef0123456789abcdef", "app.js"),
            (FOLDER_DIGEST, "app.js"),
            (&**DIGEST, INDEX),
            (&**DIGEST, "../ui.rs"),
        ] {
            assert_eq!(UiFiles::Packed.file(digest, path), None, "{digest} {path}");
        }
    }

    #[test]
    fn a_folder_gives_its_files_and_none_beside_it() {
        let folder = UiFiles::Folder(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ui"));
        let page = String::from_utf8(folder.page().unwrap().plain().unwrap()).unwrap();
        assert!(page.contains("a/folder/app.js"), "{page}");
        assert!(!folder.is_immutable());
        for name in ["app.js", "pages/overview.js"] {
            let packed = UiFiles::Packed.file(&DIGEST, name).unwrap().plain().unwrap();
            assert_eq!(folder.file(FOLDER_DIGEST, name).unwrap().plain().unwrap(), packed);
        }
        for path in [
            "../ui.rs",
            "pages/../../ui.rs",
            "/etc/hostname",
            "",
            "pages//overview.js",
            "pages",
        ] {
            assert_eq!(folder.file(FOLDER_DIGEST, path), None, "{path}");
        }
    }
}
