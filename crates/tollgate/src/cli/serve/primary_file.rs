//! The file with the primary that sentinels last reported: a server that starts while no sentinel responds connects to it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tollgate_limiter::store::redis::Redis;

/// The file and its content.
pub(super) struct PrimaryFile {
    path: PathBuf,
    text: Option<String>,
}

impl PrimaryFile {
    /// Reads what an earlier server left in the directory. A file that cannot be read counts as missing.
    pub(super) fn read(folder: &Path) -> Self {
        let path = folder.join(FILE_NAME);
        let mut text = String::new();
        let read = File::open(&path).and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
        Self {
            text: read.is_ok().then(|| text.trim().to_owned()),
            path,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Writes the file whenever sentinels report another primary, without end. A failure is logged once and retried.
    pub(super) async fn keep_current(mut self, store: &Redis) {
        let mut ticker = interval(POLL_INTERVAL);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_reported = false;
        loop {
            ticker.tick().await;
            let Some(primary) = store.primary().filter(|named| self.text() != Some(named)) else {
                continue;
            };
            let (path, text) = (self.path.clone(), primary.clone());
            // A disk may block.
            match spawn_blocking(move || write(&path, &text)).await {
                Ok(Ok(())) => {
                    tracing::info!(primary = primary, "sentinels report the primary");
                    (self.text, is_reported) = (Some(primary), false);
                }
                Ok(Err(error)) if !is_reported => {
                    let file = self.path.display();
                    tracing::warn!(%file, %error, "cannot write the primary file; retrying");
                    is_reported = true;
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }
}

/// Replaces the file atomically: a reader never sees a part of it.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

const FILE_NAME: &str = "primary";

/// A name and an address are shorter.
const BYTES_MAX: u64 = 16 << 10;

const POLL_INTERVAL: Duration = Duration::from_millis(500);
