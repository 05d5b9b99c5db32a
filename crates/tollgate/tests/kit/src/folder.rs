//! A folder that goes with the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of one test, removed when it is dropped.
#[derive(Debug)]
pub struct TestFolder(PathBuf);

impl TestFolder {
    #[expect(clippy::new_without_default, reason = "each call makes another folder")]
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tollgate-test-{}-{count}", std::process::id()));
        // An earlier process of this id may have been killed.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("there is space for a folder");
        Self(path)
    }

    /// With one file in it.
    pub fn with(name: &str, text: &str) -> Self {
        let folder = Self::new();
        folder.write(name, text);
        folder
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, and the folders it is in.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("there is space for a folder");
        fs::write(path, text).expect("there is space for a file");
    }

    /// Puts a file in place of another, as editors do.
    pub fn replace(&self, name: &str, text: &str) {
        self.write("new", text);
        fs::rename(self.0.join("new"), self.0.join(name)).expect("a file can be renamed");
    }

    pub fn open(&self, name: &str) -> fs::File {
        fs::File::open(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
