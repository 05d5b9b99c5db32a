//! File stamps: detect that a file was written, replaced or removed, without reading it.

use std::path::{Path, PathBuf};

/// The stamps of several files at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileStamps(Vec<(PathBuf, Option<FileStamp>)>);

/// The identity of a file's content: writing in place changes the times, a rename or a retargeted link the inode. Links are
/// followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamps {
    /// Adds a file. A missing one has no stamp.
    pub(super) fn add(&mut self, path: &Path) {
        self.0.push((path.to_owned(), FileStamp::read(path)));
    }
}

impl FileStamp {
    #[cfg(unix)]
    fn read(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let data = std::fs::metadata(path).ok()?;
        Some(Self {
            device: data.dev(),
            inode: data.ino(),
            size: data.size(),
            modified: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn stamp(path: &Path) -> FileStamps {
        let mut stamps = FileStamps::default();
        stamps.add(path);
        stamps
    }

    #[test]
    fn a_file_that_was_replaced_linked_elsewhere_or_taken_away_is_seen() {
        let folder = std::env::temp_dir().join(format!("tollgate-seen-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, other, link) = (folder.join("a"), folder.join("b"), folder.join("link"));
        fs::write(&file, "one").unwrap();
        fs::write(&other, "two").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let (at_file, at_link) = (stamp(&file), stamp(&link));
        assert_eq!(stamp(&file), at_file);

        // A link is swapped by renaming another over it.
        std::os::unix::fs::symlink(&other, folder.join("new")).unwrap();
        fs::rename(folder.join("new"), &link).unwrap();
        assert_ne!(stamp(&link), at_link);
        fs::rename(&other, &file).unwrap();
        assert_ne!(stamp(&file), at_file);
        let replaced = stamp(&file);
        fs::write(&file, "longer").unwrap();
        assert_ne!(stamp(&file), replaced);
        fs::remove_file(&file).unwrap();
        assert_ne!(stamp(&file), replaced);
        fs::remove_dir_all(&folder).unwrap();
    }
}
