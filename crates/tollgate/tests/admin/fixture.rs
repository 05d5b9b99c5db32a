//! A server of the admin API for one test.

use crate::client::{Request, use_document};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection};
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollgate::alerts::{AlertOptions, Alerts};
use tollgate::config::{DataDir, Sources};
use tollgate::control::model::{Digest, Role};
use tollgate::control::{Control, ControlOptions, DatabaseChoice};
use tollgate::rule_source::ConfigLoader;
use tollgate::server::admin::{Admin, AdminLinks, AdminOptions, AdminSettings, AdminToken};
use tollgate::server::gate::{Gate, Phase};
use tollgate::server::net::listen::{Address, Listener};
use tollgate_limiter::store::memory::Memory;
use tollgate_test_kit::postgres::Postgres;
use tollgate_test_kit::{TestFolder, eventually};

/// The file layer of every server.
pub(crate) const FILE_LAYER: &str = "
rules:
  - { id: plan, per: merchant, limit: 100/min }
  - { id: shop-plan, domain: shop, per: merchant, limit: 50/min }
";

/// The database of a server.
pub(crate) enum Storage {
    Sqlite,
    Postgres(Arc<Postgres>),
    None,
}

impl Storage {
    /// One of each kind that has a database.
    pub(crate) fn both() -> [Self; 2] {
        [Self::Sqlite, Self::Postgres(Postgres::shared())]
    }
}

/// A running server. Its folder goes with it.
pub(crate) struct AdminServer {
    pub(crate) address: SocketAddr,
    pub(crate) control: Control,
    pub(crate) gate: Arc<Gate>,
    pub(crate) links: AdminLinks,
    pub(crate) runtime: Runtime,
    folder: Arc<TestFolder>,
    options: StartOptions,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
    follower: JoinHandle<()>,
}

#[derive(Clone)]
pub(crate) struct StartOptions {
    pub(crate) settings: AdminSettings,
    pub(crate) control: ControlOptions,
    pub(crate) alerts: AlertOptions,
    pub(crate) choice: DatabaseChoice,
    pub(crate) file_layer: String,
    /// The server of its database, as long as a server of the API uses it.
    _postgres: Option<Arc<Postgres>>,
}

impl AdminServer {
    /// Over SQLite, with the tokens of [`tokens`].
    pub(crate) fn start() -> Self {
        Self::over(&Storage::Sqlite)
    }

    /// Over a database, with the tokens of [`tokens`].
    pub(crate) fn over(storage: &Storage) -> Self {
        Self::with(storage, |options| options.settings.tokens = tokens())
    }

    /// One over each kind of database, one after the other.
    pub(crate) fn over_both() -> impl Iterator<Item = Self> {
        Storage::both().into_iter().map(|storage| Self::over(&storage))
    }

    /// As it is after the first start: without tokens.
    pub(crate) fn fresh() -> Self {
        Self::with(&Storage::Sqlite, |_| {})
    }

    pub(crate) fn with(storage: &Storage, change: impl FnOnce(&mut StartOptions)) -> Self {
        let choice = match storage {
            Storage::Sqlite => DatabaseChoice::DataDir,
            Storage::Postgres(server) => DatabaseChoice::Postgres(server.create_database()),
            Storage::None => DatabaseChoice::None,
        };
        let _postgres = match storage {
            Storage::Postgres(server) => Some(Arc::clone(server)),
            Storage::Sqlite | Storage::None => None,
        };
        let mut options = StartOptions {
            _postgres,
            settings: AdminSettings::default(),
            control: ControlOptions::default(),
            alerts: AlertOptions::default(),
            choice,
            file_layer: FILE_LAYER.to_owned(),
        };
        change(&mut options);
        Self::open(Arc::new(TestFolder::new()), options)
    }

    fn open(folder: Arc<TestFolder>, options: StartOptions) -> Self {
        keep_log();
        folder.write("tollgate.yaml", &options.file_layer);
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let mut loader = ConfigLoader::new(Sources {
            file: (!options.file_layer.is_empty()).then(|| folder.path().join("tollgate.yaml")),
            variables: Vec::new(),
            store: None,
            set: Vec::new(),
        });
        let snapshot = loader.load().unwrap();
        let data_dir = DataDir {
            path: folder.path().join("data"),
            is_configured: true,
        };
        let (gate, control, admin, listener, links) = runtime.block_on(async {
            let gate = Arc::new(Gate::new(snapshot.rules, Arc::new(Memory::options().build())));
            gate.advance_phase(Phase::Ready);
            let loader = Arc::new(tokio::sync::Mutex::new(loader));
            let target = Arc::clone(&gate);
            let control = Control::start(
                &options.choice,
                &data_dir,
                options.control.clone(),
                target,
                loader,
                None,
            );
            let control = control.await.unwrap();
            let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
            let admin_options = AdminOptions {
                settings: options.settings.clone(),
                address: listener.address().unwrap(),
                tls: None,
                drain: Duration::from_secs(1),
                alerts: Alerts::new(Arc::clone(&gate), control.clone(), options.alerts.clone()),
                decisions: tokio::runtime::Handle::current(),
            };
            let admin = Admin::new(Arc::clone(&gate), control.clone(), admin_options);
            let links = admin.links().await;
            (gate, control, admin, listener, links)
        });
        let Ok(Address::Tcp(address)) = listener.address() else {
            panic!("a TCP listener has a TCP address")
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let served = runtime.spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            admin.serve(listener, stopped).await;
        });
        let follower = runtime.spawn(control.clone().run());
        use_document(address);
        Self {
            address,
            control,
            gate,
            links,
            runtime,
            folder,
            options,
            stop: Some(stop),
            served: Some(served),
            follower,
        }
    }

    /// Another server with the same folder, as another process would be.
    pub(crate) fn beside(&self) -> Self {
        Self::open(Arc::clone(&self.folder), self.options.clone())
    }

    /// Stops it, changes its data, and starts it again in the same folder.
    pub(crate) fn restart(self, change: impl FnOnce(&Path)) -> Self {
        let (folder, options) = (Arc::clone(&self.folder), self.options.clone());
        // With its runtime everything that has the database open ends.
        drop(self);
        // Each connection is closed by a thread of its own. Two that close at once may both leave the log in place: whoever copies the
        // database copies the log too.
        eventually("the database is closed", || !is_open(&folder.path().join("data")));
        change(&folder.path().join("data"));
        Self::open(folder, options)
    }

    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(served) = self.served.take() {
            let _ = self.runtime.block_on(served);
        }
        self.follower.abort();
    }

    /// Executes a statement past the server's own code.
    pub(crate) fn execute(&self, sql: &str) {
        let sql = sqlx::AssertSqlSafe(sql.to_owned());
        self.runtime.block_on(async {
            match &self.options.choice {
                DatabaseChoice::Postgres(url) => {
                    let mut connection = PgConnection::connect(url).await.unwrap();
                    sqlx::query(sql).execute(&mut connection).await.unwrap();
                }
                _ => {
                    let file = SqliteConnectOptions::new().filename(self.data().join("control.db"));
                    let mut connection = file.connect().await.unwrap();
                    sqlx::query(sql).execute(&mut connection).await.unwrap();
                }
            }
        });
    }

    /// The folder of its data.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn request(&self, method: &str, target: &str) -> Request {
        Request::new(self.address, method, target)
    }

    /// A GET by the admin of the settings.
    pub(crate) fn get(&self, target: &str) -> Request {
        self.request("GET", target).token(ADMIN)
    }

    /// Another method by the admin of the settings.
    pub(crate) fn by_admin(&self, method: &str, target: &str) -> Request {
        self.request(method, target).token(ADMIN)
    }

    /// A PUT by the admin of the settings, of something that must not exist yet.
    pub(crate) fn create(&self, target: &str, body: &Value) -> Request {
        self.by_admin("PUT", target).if_absent().json(body)
    }

    /// A POST of our own page without a session.
    pub(crate) fn post_page(&self, target: &str, body: &Value) -> Request {
        self.request("POST", target).page("").json(body)
    }

    /// The number of items on one page of a list.
    #[track_caller]
    pub(crate) fn count(&self, target: &str) -> usize {
        self.get(target).expect(200).json()["items"].as_array().unwrap().len()
    }

    /// Revisions, rows, attributes, versions, principals and sessions: everything but the audit log and times of last use.
    pub(crate) fn state(&self) -> String {
        let lists = [
            "/v1/overrides?limit=1000",
            "/v1/attributes?limit=1000",
            "/v1/versions?limit=1000",
            "/v1/users",
            "/v1/tokens",
            "/v1/sessions",
            "/v1/rules?limit=1000",
        ];
        let status = self.get("/v1/status").send().json();
        let mut state = format!("{} {} {}", status["epoch"], status["revision"], status["chain"]);
        for list in lists {
            let items = self.get(list).send().json()["items"].clone();
            let mut items = items.as_array().unwrap().clone();
            for item in &mut items {
                item.as_object_mut().unwrap().remove("seen_at");
            }
            state.push_str(&format!("\n{list} {}", serde_json::to_string(&items).unwrap()));
        }
        state
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The tokens of the settings.
pub(crate) const VIEWER: &str = "token-of-a-viewer";
pub(crate) const OPERATOR: &str = "token-of-an-operator";
pub(crate) const EDITOR: &str = "token-of-an-editor";
pub(crate) const ADMIN: &str = "token-of-an-admin";
/// An editor of the domain `shop` only.
pub(crate) const SHOP_EDITOR: &str = "token-of-an-editor-of-shop";
/// An operator of the domain `shop` only.
pub(crate) const SHOP_OPERATOR: &str = "token-of-an-operator-of-shop";

pub(crate) fn tokens() -> Vec<AdminToken> {
    let token = |name: &str, secret: &str, role, domains: &[&str]| AdminToken {
        name: name.to_owned(),
        sha256: Digest(Sha256::digest(secret.as_bytes()).into()),
        role,
        domains: domains.iter().map(|domain| (*domain).to_owned()).collect(),
    };
    vec![
        token("viewer", VIEWER, Role::Viewer, &[]),
        token("operator", OPERATOR, Role::Operator, &[]),
        token("editor", EDITOR, Role::Editor, &[]),
        token("admin", ADMIN, Role::Admin, &[]),
        token("shop-editor", SHOP_EDITOR, Role::Editor, &["shop"]),
        token("shop-operator", SHOP_OPERATOR, Role::Operator, &["shop"]),
    ]
}

/// Everything that servers of this process have logged.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn keep_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG);
        subscriber.with_ansi(false).with_writer(|| LogWriter).init();
    });
}

/// The log of all servers of this process.
pub(crate) fn log() -> String {
    String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned()
}

/// True while this process has a file of the folder open.
fn is_open(folder: &Path) -> bool {
    let open = fs::read_dir("/proc/self/fd").unwrap();
    open.filter_map(|file| fs::read_link(file.ok()?.path()).ok())
        .any(|file| file.starts_with(folder))
}
