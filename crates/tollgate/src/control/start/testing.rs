//! A control plane for unit tests: one instance in a folder of its own, and the writes that the tests share.

use crate::config::{DataDir, Sources};
use crate::control::model::{Author, Grammar, SetFile};
use crate::control::{
    Control, ControlOptions, ControlResult, DatabaseChoice, PublishOptions, PublishSet, Published, RowWrite,
    WriteOptions, Written,
};
use crate::rule_source::ConfigLoader;
use crate::server::gate::Gate;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::store::redis::{ConfigCache, Redis};
use tollgate_limiter::testing::eventually;
use tollgate_limiter::testing::servers::Server;

/// A shared secret of a fleet.
pub(in crate::control) const SECRET: &str = "a secret of more than 32 characters";
/// The rules in the file of an instance.
pub(in crate::control) const FILE_LAYER: &str = "rules:\n  - id: plan\n    per: merchant\n    limit: 2/min\n";

/// One instance, in a folder of its own. Ends with its value.
pub(in crate::control) struct Instance {
    pub(in crate::control) control: Control,
    pub(in crate::control) gate: Arc<Gate>,
    pub(in crate::control) folder: PathBuf,
    pub(in crate::control) task: JoinHandle<()>,
    /// True if the folder outlives it.
    is_folder_kept: bool,
}

/// A new folder with the file layer of an instance.
pub(in crate::control) fn new_folder(file_layer: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // In memory where that is possible: closing a database syncs it, and a disk that others write to may take a minute for that.
    let memory = Some(PathBuf::from("/dev/shm")).filter(|memory| memory.is_dir());
    let folder = memory
        .unwrap_or_else(std::env::temp_dir)
        .join(format!("tollgate-control-{}-{count}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("tollgate.yaml"), file_layer).unwrap();
    folder
}

impl Instance {
    /// Starts an instance in a folder with a file layer.
    pub(in crate::control) async fn open(
        folder: PathBuf,
        choice: &DatabaseChoice,
        options: ControlOptions,
        cache: Option<ConfigCache>,
    ) -> Self {
        let mut loader = ConfigLoader::new(Sources {
            file: Some(folder.join("tollgate.yaml")),
            variables: Vec::new(),
            store: None,
            set: Vec::new(),
        });
        let snapshot = loader.load().unwrap();
        let gate = Arc::new(Gate::new(snapshot.rules, Arc::new(Memory::options().build())));
        let data_dir = DataDir {
            path: folder.join("data"),
            is_configured: true,
        };
        let loader = Arc::new(tokio::sync::Mutex::new(loader));
        let control = Control::start(choice, &data_dir, options, Arc::clone(&gate), loader, cache);
        let control = control.await.unwrap();
        let task = tokio::spawn(control.clone().run());
        Self {
            control,
            gate,
            folder,
            task,
            is_folder_kept: false,
        }
    }

    /// Stops it and returns its folder, in which nothing is written any more.
    pub(in crate::control) async fn close(mut self) -> PathBuf {
        self.task.abort();
        self.is_folder_kept = true;
        let folder = self.folder.clone();
        let held = Arc::downgrade(&self.control.parts);
        let database = self.control.database().cloned();
        drop(self);
        eventually("the end of its tasks", async || held.strong_count() == 0).await;
        let data = folder.join("data");
        // Asked for and waited for: connections that are dropped close in threads of their own, and the last of them removes files.
        if let Some(database) = database
            && timeout(CLOSE_TIMEOUT, database.close()).await.is_err()
        {
            panic!("the database does not close; open: {:?}", open_files(&data));
        }
        // The journal is closed by the thread that ends last.
        eventually("closed files", async || open_files(&data).is_empty()).await;
        folder
    }

    /// Writes a row and waits until it is applied.
    pub(in crate::control) async fn write_row(&self, row: RowWrite) -> ControlResult<Written> {
        let written = self.control.write_row(row, &WriteOptions::default(), author()).await?;
        self.applies(written.revision).await;
        Ok(written)
    }

    pub(in crate::control) async fn publish(&self, text: &str, options: &PublishOptions) -> ControlResult<Published> {
        let set = PublishSet::Files(vec![file(text)]);
        self.control.publish(set, options, author()).await
    }

    /// Waits until a revision is applied.
    pub(in crate::control) async fn applies(&self, revision: u64) {
        assert!(self.control.wait_applied(revision, Duration::from_secs(20)).await);
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.task.abort();
        if !self.is_folder_kept {
            // Its tasks may write once more; that is little.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// The files of a folder that this process has open.
fn open_files(folder: &Path) -> Vec<PathBuf> {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.starts_with(folder)).collect()
}

const CLOSE_TIMEOUT: Duration = Duration::from_secs(120);

pub(in crate::control) fn author() -> Author {
    Author {
        actor: "anna".to_owned(),
        via: "api".to_owned(),
        ..Author::default()
    }
}

/// The config cache in a server.
pub(in crate::control) fn cache(server: &Server) -> ConfigCache {
    ConfigCache::new(Redis::options(&server.url()).unwrap())
}

/// A file of the rules of a version.
pub(in crate::control) fn file(text: &str) -> SetFile {
    SetFile {
        path: "shop.yaml".to_owned(),
        grammar: Grammar::Own,
        text: text.to_owned(),
    }
}

/// A row of a merchant.
pub(in crate::control) fn row(rule: &str, merchant: &str, terms: Option<&str>) -> RowWrite {
    RowWrite {
        domain: "default".to_owned(),
        rule: rule.to_owned(),
        subject: [("merchant".to_owned(), merchant.to_owned())].into(),
        terms: terms.map(str::to_owned),
        note: String::new(),
        expires_at: 0,
    }
}
