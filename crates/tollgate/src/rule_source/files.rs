//! Rules from files: reads settings and rule files, and reads them again when they change or a signal asks for it.

use super::file_pattern::{FILES_MAX, FilePattern, RulesFormat};
use super::file_stamps::FileStamps;
use super::managed::{ManagedFiles, RowLayer};
use super::quarantine::LastGood;
use super::source_texts::{ConfigSnapshot, SourceTexts, redact};
use super::{Revision, RuleSource, RulesUpdate, SourceError};
use crate::compat::ratelimit;
use crate::config::{RawSettings, Sources, read_text};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tollgate_limiter::core::problem::{Location, Problem, Problems};
use tollgate_limiter::core::yaml::{self, Node, NodeKind};

/// The rule source of a server without a control plane. Files are polled, and read on a blocking thread, one reload at a
/// time.
pub struct FileSource {
    loader: SharedLoader,
    requested: Arc<Notify>,
    ticker: Interval,
    on_settings: Arc<dyn Fn(&ConfigSnapshot) + Send + Sync>,
    revision: Revision,
}

/// A loader of several rule sources. It is locked from compiling to installing, so that no source installs rules over newer ones.
pub type SharedLoader = Arc<Mutex<ConfigLoader>>;

/// Reads settings and rules, again and again.
#[derive(Debug)]
pub struct ConfigLoader {
    sources: Sources,
    /// Of the last settings that could be read.
    patterns: Vec<FilePattern>,
    /// Files named under `auth` by the last settings that could be read.
    secret_files: Vec<PathBuf>,
    stamps: FileStamps,
    /// True just after a change. A second change within the same tick of the file system's clock leaves no trace, so the
    /// texts are compared once more.
    needs_recheck: bool,
    texts: Option<SourceTexts>,
    /// The last texts that could be compiled, for a managed layer that changes while a file is broken.
    good_texts: Option<SourceTexts>,
    /// Counts the texts that could be compiled.
    generation: u64,
    last_good: LastGood,
    managed: ManagedFiles,
    row_layer: Option<Arc<dyn RowLayer>>,
}

#[derive(Clone, Copy)]
enum Trigger {
    Interval,
    Request,
}

impl FileSource {
    /// The poll interval of the files.
    pub const INTERVAL: Duration = Duration::from_millis(500);

    /// A source over a loader that has loaded once. A notification of `requested` reloads even if nothing changed.
    /// `on_settings` sees every snapshot before its rules are delivered.
    pub fn new(
        loader: SharedLoader,
        requested: Arc<Notify>,
        on_settings: impl Fn(&ConfigSnapshot) + Send + Sync + 'static,
    ) -> Self {
        let mut ticker = interval(Self::INTERVAL);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            loader,
            requested,
            ticker,
            on_settings: Arc::new(on_settings),
            revision: Revision::default(),
        }
    }
}

impl RuleSource for FileSource {
    async fn next(&mut self) -> Result<RulesUpdate, SourceError> {
        loop {
            let trigger = tokio::select! {
                _ = self.ticker.tick() => Trigger::Interval,
                () = self.requested.notified() => Trigger::Request,
            };
            let mut loader = Arc::clone(&self.loader).lock_owned().await;
            let on_settings = Arc::clone(&self.on_settings);
            let result = tokio::task::spawn_blocking(move || {
                let loaded = match trigger {
                    Trigger::Interval => loader.load_if_changed(),
                    Trigger::Request => Some(loader.load()),
                };
                if let Some(Ok(snapshot)) = &loaded {
                    on_settings(snapshot);
                }
                loaded.map(|loaded| loaded.map(|snapshot| (snapshot, loader)))
            });
            match result.await {
                Ok(None) => {}
                Ok(Some(Ok((snapshot, loader)))) => {
                    self.revision.number += 1;
                    return Ok(RulesUpdate {
                        rules: snapshot.rules,
                        warnings: snapshot.warnings,
                        quarantined: snapshot.quarantined,
                        revision: self.revision,
                        lock: Some(loader),
                    });
                }
                Ok(Some(Err(problems))) => return Err(SourceError::Invalid(problems)),
                // A panic ends this reload only.
                Err(error) => return Err(SourceError::Failed(error.to_string())),
            }
        }
    }
}

impl fmt::Debug for FileSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSource")
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}

impl ConfigLoader {
    /// A loader of these sources. Nothing is read yet, but the settings file is chosen: if it is removed later, that is an
    /// error and not a reason to fall back to defaults.
    pub fn new(sources: Sources) -> Self {
        let file = sources.path();
        Self {
            sources: Sources { file, ..sources },
            patterns: Vec::new(),
            secret_files: Vec::new(),
            stamps: FileStamps::default(),
            needs_recheck: false,
            texts: None,
            good_texts: None,
            generation: 0,
            last_good: LastGood::default(),
            managed: None,
            row_layer: None,
        }
    }

    /// Sets the layer of rows and attributes, which every set gets that is loaded from now on.
    pub fn set_row_layer(&mut self, rows: Arc<dyn RowLayer>) {
        self.row_layer = Some(rows);
    }

    /// Sets the managed files of sets that are loaded from now on.
    pub fn set_managed(&mut self, files: ManagedFiles) {
        if let Some(texts) = &mut self.good_texts {
            texts.managed.clone_from(&files);
        }
        self.managed = files;
    }

    /// Counts the file layers that could be used: a set that was rejected may fit the next one.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// The digest of the last file layer that could be used.
    pub fn file_digest(&self) -> [u8; 32] {
        self.good_texts.as_ref().map(SourceTexts::digest).unwrap_or_default()
    }

    /// Compiles the last file layer that could be used with these managed files, without rows. Nothing is read, and nothing changes.
    ///
    /// # Errors
    /// Every problem of the rules.
    pub fn compile_managed(&self, files: ManagedFiles) -> Result<ConfigSnapshot, Vec<Problem>> {
        let texts = self.good_texts.clone().unwrap_or_else(SourceTexts::empty);
        redact(
            SourceTexts {
                managed: files,
                ..texts
            }
            .compile(),
        )
    }

    /// Reads everything.
    ///
    /// # Errors
    /// Every problem of settings and rules.
    pub fn load(&mut self) -> Result<ConfigSnapshot, Vec<Problem>> {
        let texts = self.read();
        let is_first = self.texts.is_none();
        let snapshot = match self.compile(&texts) {
            Err(problems) if is_first && texts.may_start_without_ratelimit() => {
                self.good_texts = Some(texts.without_ratelimit());
                texts.compile_without_ratelimit(problems)
            }
            snapshot => snapshot,
        };
        self.texts = Some(texts);
        redact(snapshot).map(|snapshot| self.with_rows(snapshot))
    }

    /// Reads everything again if a file has changed since the last reading. `None` if none has.
    pub fn load_if_changed(&mut self) -> Option<Result<ConfigSnapshot, Vec<Problem>>> {
        let is_changed = self.current_stamps() != self.stamps;
        if !is_changed && !self.needs_recheck {
            return None;
        }
        let texts = self.read();
        self.needs_recheck = is_changed;
        if self.texts.as_ref().is_some_and(|previous| previous.is_same(&texts)) {
            return None;
        }
        let snapshot = redact(self.compile(&texts));
        self.texts = Some(texts);
        Some(snapshot.map(|snapshot| self.with_rows(snapshot)))
    }

    /// Adds the layer of rows.
    fn with_rows(&self, snapshot: ConfigSnapshot) -> ConfigSnapshot {
        match &self.row_layer {
            None => snapshot,
            Some(rows) => ConfigSnapshot {
                rules: rows.amend(snapshot.rules, self.file_digest()),
                ..snapshot
            },
        }
    }

    /// Compiles texts, with broken files quarantined if the settings ask for it.
    fn compile(&mut self, texts: &SourceTexts) -> Result<ConfigSnapshot, Vec<Problem>> {
        let (texts, quarantined) = match texts.isolates_files() {
            false => (texts.clone(), Vec::new()),
            true => {
                let (files, quarantined) = self.last_good.substitute(&texts.files);
                (SourceTexts { files, ..texts.clone() }, quarantined)
            }
        };
        let snapshot = texts.compile()?;
        self.good_texts = Some(texts);
        self.generation += 1;
        Ok(ConfigSnapshot {
            quarantined,
            ..snapshot
        })
    }

    /// The stamps of all files now.
    fn current_stamps(&self) -> FileStamps {
        let mut stamps = FileStamps::default();
        for path in self.sources.file.iter().chain(&self.secret_files) {
            stamps.add(path);
        }
        for path in self.patterns.iter().flat_map(|pattern| pattern.files().0) {
            stamps.add(&path);
        }
        stamps
    }

    /// Reads the texts. Each file is stamped before it is read, so that a write in between counts as a change.
    fn read(&mut self) -> SourceTexts {
        let mut stamps = FileStamps::default();
        if let Some(path) = &self.sources.file {
            stamps.add(path);
        }
        let settings = self.sources.read().map(Arc::new);
        let mut problems = Problems::new();
        if let Ok(raw) = &settings {
            self.patterns = FilePattern::read_all(raw, &mut problems);
            self.secret_files = secret_files(raw);
        }
        let digest = |path: &PathBuf| {
            stamps.add(path);
            let file = read_text(path).ok()?;
            Some(Sha256::digest(file.text.as_bytes()).into())
        };
        let secrets = self.secret_files.iter().map(digest).collect();
        let mut ratelimit_problems = Problems::new();
        let mut files = Vec::new();
        let mut seen_paths = HashSet::new();
        let mut bytes = 0;
        for pattern in &self.patterns {
            let (paths, problem) = pattern.files();
            match pattern.format {
                RulesFormat::Native => problems.extend(problem),
                RulesFormat::Ratelimit => ratelimit_problems.extend(problem),
            }
            for path in paths {
                stamps.add(&path);
                if !seen_paths.insert(path.clone()) {
                    continue;
                }
                let file = read_text(&path);
                bytes += file.as_ref().map_or(0, |origin| origin.text.len());
                if files.len() >= FILES_MAX || bytes > BYTES_MAX {
                    let text = format!("more than {FILES_MAX} rule files, or {BYTES_MAX} bytes of them");
                    problems.error(&pattern.location, text);
                    break;
                }
                files.push((pattern.format, file));
            }
        }
        self.stamps = stamps;
        SourceTexts {
            settings,
            files,
            secrets,
            problems: problems.sorted(),
            ratelimit_problems: ratelimit_problems.sorted(),
            managed: self.managed.clone(),
        }
    }
}

/// The files with secrets that the settings name, and those that a file of tokens among them names.
fn secret_files(raw: &RawSettings) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let base_dir_of = |location: &Location| raw.base_dir_of(location);
    for section in ["auth", "store", "control", "admin", ratelimit::SETTING] {
        if let Some(node) = raw.setting(section) {
            add_secret_files(node, &base_dir_of, &mut files);
        }
    }
    if let Some(node) = raw.setting("key_secret_file")
        && let Some(name) = node.scalar()
    {
        files.push(base_dir_of(&node.location).join(name));
    }
    files
}

fn add_secret_files(node: &Node, base_dir_of: &dyn Fn(&Location) -> PathBuf, files: &mut Vec<PathBuf>) {
    match &node.kind {
        NodeKind::Map(entries) => {
            for (key, value) in entries {
                let name = value.scalar().filter(|_| SECRET_FILES.contains(&&*key.text));
                let Some(name) = name else {
                    add_secret_files(value, base_dir_of, files);
                    continue;
                };
                let path = base_dir_of(&value.location).join(name);
                files.push(path.clone());
                if &*key.text == "tokens_file"
                    && let Ok(root) = read_text(&path)
                        .map_err(drop)
                        .and_then(|file| yaml::parse(&file).map_err(drop))
                {
                    let base_dir = path.parent().map(PathBuf::from).unwrap_or_default();
                    add_secret_files(&root, &|_| base_dir.clone(), files);
                }
            }
        }
        NodeKind::List(nodes) => {
            for node in nodes {
                add_secret_files(node, base_dir_of, files);
            }
        }
        _ => {}
    }
}

/// Settings within a section that name a file with secrets.
const SECRET_FILES: [&str; 7] = [
    "database_file",
    "secret_file",
    "tokens_file",
    "token_file",
    "resp_password_file",
    "password_file",
    "sentinel_password_file",
];

/// The most bytes of rule files that are read.
const BYTES_MAX: usize = 64 << 20;
