//! The files of a version as one value of the cache.

use super::Signer;
use super::parts::{Manifest, ManifestKind, cut, inflate, set_name};
use crate::control::chain::set_digest;
use crate::control::model::{Digest, Grammar, SetFile};
use serde::{Deserialize, Serialize};
use std::io::Read;

/// The line before the text of a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLine {
    path: String,
    grammar: Grammar,
    bytes: usize,
}

/// The manifest and the parts of a set of this format.
pub fn encode_set(files: &[SetFile], format: u32) -> (Manifest, Vec<Vec<u8>>) {
    let mut text = Vec::new();
    for file in files {
        let line = FileLine {
            path: file.path.clone(),
            grammar: file.grammar,
            bytes: file.text.len(),
        };
        // A path, a name and a number always encode.
        text.extend(serde_json::to_vec(&line).unwrap_or_default());
        text.push(b'\n');
        text.extend(file.text.as_bytes());
    }
    let set = set_digest(files);
    cut(ManifestKind::Set { set, format }, [text])
}

/// Reads a set of this digest.
///
/// # Errors
/// A manifest or parts that no instance has written, or more than 16 MiB of text.
pub fn decode_set(set: &Digest, manifest: &[u8], parts: &[Vec<u8>], signer: &Signer) -> Result<Vec<SetFile>, String> {
    let name = set_name(set);
    let manifest = Manifest::parse(&name, manifest, signer)?;
    let deflated = manifest.join(parts)?;
    let files = read_files(&deflated).map_err(|error| format!("the cached {name} cannot be used: {error}"))?;
    match set_digest(&files) == *set {
        true => Ok(files),
        false => Err(format!("the cached {name} has files of another digest")),
    }
}

fn read_files(deflated: &[u8]) -> Result<Vec<SetFile>, String> {
    let mut text = Vec::new();
    let mut reader = inflate(deflated, INFLATED_BYTES_MAX);
    reader.read_to_end(&mut text).map_err(|error| error.to_string())?;
    let mut files: Vec<SetFile> = Vec::new();
    let mut rest = text.as_slice();
    let mut text_bytes = 0;
    while !rest.is_empty() {
        let end = rest
            .iter()
            .position(|byte| *byte == b'\n')
            .ok_or("a file has no text")?;
        let (line, after) = rest.split_at(end);
        let line: FileLine = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let after = after.get(1..).unwrap_or_default();
        let (text, next) = after.split_at_checked(line.bytes).ok_or("the text of a file is cut")?;
        text_bytes += text.len();
        if files.len() >= FILES_MAX || text_bytes > TEXT_BYTES_MAX {
            return Err("it has more files or text than a set may have".to_owned());
        }
        files.push(SetFile {
            path: line.path,
            grammar: line.grammar,
            text: std::str::from_utf8(text).map_err(|error| error.to_string())?.to_owned(),
        });
        rest = next;
    }
    Ok(files)
}

/// The most bytes of text in a set.
const TEXT_BYTES_MAX: usize = 16 << 20;
const FILES_MAX: usize = 1_000;
/// The text, and for each file a line with its path.
const INFLATED_BYTES_MAX: u64 = (TEXT_BYTES_MAX + FILES_MAX * 4_096) as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::plan::FORMAT;

    fn file(path: &str, text: &str) -> SetFile {
        SetFile {
            path: path.to_owned(),
            grammar: Grammar::Own,
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_set_reads_as_it_was_written() {
        let signer = Signer::new(Some(b"secret"), "tg");
        for files in [
            Vec::new(),
            vec![file("a.yaml", "")],
            vec![file("b/\"ä\".yaml", "rules: []\n{}\n"), file("a.yaml", "no newline")],
        ] {
            let (manifest, parts) = encode_set(&files, FORMAT);
            let manifest = manifest.encode(&signer);
            let read = decode_set(&set_digest(&files), manifest.as_bytes(), &parts, &signer);
            assert_eq!(read, Ok(files));
        }
    }

    #[test]
    fn text_that_does_not_deflate_is_cut_into_parts() {
        let signer = Signer::new(None, "tg");
        let mut random = fastrand::Rng::with_seed(7);
        let text: String = (0..1_000_000).map(|_| random.alphanumeric()).collect();
        let files = vec![file("a.yaml", &text)];
        let (manifest, parts) = encode_set(&files, FORMAT);
        assert!(
            parts.len() > 2
                && parts
                    .iter()
                    .all(|part| part.len() <= super::super::parts::PART_BYTES_MAX)
        );
        let manifest = manifest.encode(&signer);
        assert_eq!(
            decode_set(&set_digest(&files), manifest.as_bytes(), &parts, &signer),
            Ok(files)
        );
    }
}
