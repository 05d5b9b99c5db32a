//! The primary that sentinels last named, kept in the server's folder: one that starts while no sentinel answers asks that.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tollgate_limiter::store::redis::Redis;

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

    /// Writes down whatever else sentinels name, without end. What keeps it from being written is told once, and tried again.
    pub(super) async fn keep(mut self, store: &Redis) {
        let mut clock = interval(LOOK_EVERY);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_told = false;
        loop {
            clock.tick().await;
            let Some(named) = store.primary().filter(|named| self.text() != Some(named)) else {
                continue;
            };
            let (path, text) = (self.path.clone(), named.clone());
            // A disk may take its time.
            match spawn_blocking(move || write(&path, &text)).await {
                Ok(Ok(())) => {
                    tracing::info!(primary = named, "sentinels name the primary");
                    (self.text, is_told) = (Some(named), false);
                }
                Ok(Err(error)) if !is_told => {
                    let file = self.path.display();
                    tracing::warn!(%file, %error, "cannot keep which primary sentinels name");
                    is_told = true;
                }
                Ok(Err(_)) | Err(_) => {}
            }
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

/// Names and addresses are no longer than that.
const LONGEST: u64 = 16 << 10;

const LOOK_EVERY: Duration = Duration::from_millis(500);
