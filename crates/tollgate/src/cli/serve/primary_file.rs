//! The primary that sentinels last named, kept in the server's folder: one that starts while no sentinel answers asks that.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tollgate_limiter::store::redis::Redis;

/// A file, and what it says as far as is known.
pub(super) struct PrimaryFile {
    path: PathBuf,
    text: Option<String>,
}

impl PrimaryFile {
    /// What a server before this one kept in the folder. A file that cannot be read is as good as none.
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

    /// Writes down whatever else sentinels name, without end. What keeps it from being written is told once, and tried again.
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
            // A disk may take its time.
            match spawn_blocking(move || write(&path, &text)).await {
                Ok(Ok(())) => {
                    tracing::info!(primary = primary, "sentinels name the primary");
                    (self.text, is_reported) = (Some(primary), false);
                }
                Ok(Err(error)) if !is_reported => {
                    let file = self.path.display();
                    tracing::warn!(%file, %error, "cannot keep which primary sentinels name");
                    is_reported = true;
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }
}

/// The whole of it, or nothing: whoever reads it never sees a part.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

const FILE_NAME: &str = "primary";

/// Names and addresses are no longer than that.
const BYTES_MAX: u64 = 16 << 10;

const POLL_INTERVAL: Duration = Duration::from_millis(500);
