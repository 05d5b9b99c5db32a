//! The primary that sentinels last named, kept in the server's folder: one that starts while no sentinel answers asks that.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tokio::task::spawn_blocking;

/// A file, and what it says as far as is known.
pub(super) struct KeptPrimary {
    path: PathBuf,
    text: Option<String>,
}

impl KeptPrimary {
    /// What a server before this one kept in the folder. A file that cannot be read is as good as none.
    pub(super) fn read(folder: &Path) -> Self {
        let path = folder.join(NAME);
        let mut text = String::new();
        let read = File::open(&path).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
        Self {
            text: read.is_ok().then(|| text.trim().to_owned()),
            path,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Writes down what sentinels name, if that is another than before. What keeps it from being written is told once.
    pub(super) async fn keep(&mut self, named: Option<String>) {
        let Some(named) = named.filter(|named| self.text() != Some(named)) else {
            return;
        };
        self.text = Some(named.clone());
        let path = self.path.clone();
        // A disk may take its time.
        match spawn_blocking(move || write(&path, &named)).await {
            Ok(Ok(())) => tracing::info!(primary = self.text(), "sentinels name the primary"),
            Ok(Err(error)) => tracing::warn!(
                file = %self.path.display(),
                %error,
                "cannot keep which primary sentinels name; one that starts while none of them answers will not know it"
            ),
            // The server ends.
            Err(_) => {}
        }
    }
}

/// The whole of it, or nothing: whoever reads it never sees a part.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

const NAME: &str = "primary";

/// A name and an address are no longer than that.
const LONGEST: u64 = 1_024;
