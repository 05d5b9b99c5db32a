//! TLS: certificates read from files, and read again when the files change.

mod client_names;

use self::client_names::ClientNameVerifier;
use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_rustls::TlsAcceptor;

/// The certificates in use. Open connections keep those they were accepted with.
pub struct Tls {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
    /// The digest of the files when they were last checked, usable or not.
    last_digest: Mutex<[u8; 32]>,
}

/// The paths of the certificates. All files are PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate and its intermediates, in this order.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The roots of client certificates; none: clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// The names of which a client certificate must hold one: DNS names or URIs, compared literally. None: any name.
    pub client_names: Option<Box<[Box<str>]>>,
}

/// The result of checking the files again.
#[derive(Debug)]
pub enum TlsReload {
    /// The files are the same.
    Unchanged,
    /// The files have changed, and new connections use them.
    Reloaded,
    /// The files have changed and cannot be used; the previous certificates stay.
    Failed(TlsError),
}

impl Tls {
    /// The time between two checks of the files.
    pub const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

    /// Reads the files.
    ///
    /// # Errors
    /// The file that cannot be used, and why.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let contents = FileContents::read(&files)?;
        Ok(Self {
            config: ArcSwap::from_pointee(contents.config(&files)?),
            last_digest: Mutex::new(contents.digest()),
            files,
        })
    }

    /// The acceptor for one new connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// True if clients need a certificate.
    pub fn requires_client_certificate(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Checks the files and takes changed certificates, if they can be used.
    ///
    /// Contents are compared, not modification times: the files are small, and a file that was replaced by a link or written
    /// twice within the clock's resolution is not missed. A certificate whose key is not written yet is a failed reload,
    /// followed by a successful one.
    pub fn reload_if_changed(&self) -> TlsReload {
        let contents = match FileContents::read(&self.files) {
            Ok(contents) => contents,
            Err(error) => return self.if_changed([0; 32], || TlsReload::Failed(error)),
        };
        self.if_changed(contents.digest(), || match contents.config(&self.files) {
            Ok(config) => {
                self.config.store(Arc::new(config));
                TlsReload::Reloaded
            }
            Err(error) => TlsReload::Failed(error),
        })
    }

    fn if_changed(&self, digest: [u8; 32], change: impl FnOnce() -> TlsReload) -> TlsReload {
        let mut last_digest = self.last_digest.lock().unwrap_or_else(PoisonError::into_inner);
        if *last_digest == digest {
            return TlsReload::Unchanged;
        }
        *last_digest = digest;
        drop(last_digest);
        change()
    }

    /// Checks the files every second, for as long as it is polled.
    pub async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(Self::RELOAD_INTERVAL).await;
            let tls = Arc::clone(&self);
            match tokio::task::spawn_blocking(move || tls.reload_if_changed()).await {
                Ok(TlsReload::Reloaded) => {
                    tracing::info!(file = %self.files.certificate.display(), "certificates reloaded");
                }
                Ok(TlsReload::Failed(error)) => {
                    tracing::error!(%error, "certificate reload failed; keeping the previous certificates");
                }
                Ok(TlsReload::Unchanged) | Err(_) => {}
            }
        }
    }
}

/// The contents of the files.
struct FileContents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl FileContents {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        Ok(Self {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            client_ca: files.client_ca.as_deref().map(read).transpose()?,
        })
    }

    fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        let parts = [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()];
        for part in parts.into_iter().flatten() {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        digest.finalize().into()
    }

    fn config(&self, files: &TlsFiles) -> Result<ServerConfig, TlsError> {
        let chain = certificates(&files.certificate, &self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| TlsError::new(&files.key, format!("holds no private key: {error}")))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::new(&files.certificate, error))?;
        let builder = match (&files.client_ca, &self.client_ca) {
            (Some(path), Some(pem)) => {
                let mut roots = RootCertStore::empty();
                for root in certificates(path, pem)? {
                    roots.add(root).map_err(|error| TlsError::new(path, error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| TlsError::new(path, error))?;
                match &files.client_names {
                    None => builder.with_client_cert_verifier(verifier),
                    Some(names) => {
                        builder.with_client_cert_verifier(Arc::new(ClientNameVerifier::new(verifier, names.clone())))
                    }
                }
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| TlsError::new(&files.certificate, format!("cannot be used with its key: {error}")))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| TlsError::new(path, error))?;
    if certificates.is_empty() {
        return Err(TlsError::new(path, "holds no certificate"));
    }
    Ok(certificates)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|error: io::Error| TlsError::new(path, error))?;
    Ok(bytes)
}

/// More than any chain of certificates or set of roots.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The reason why certificates cannot be used. The operator can fix it.
#[derive(Debug)]
pub struct TlsError {
    path: PathBuf,
    reason: String,
}

impl TlsError {
    fn new(path: &Path, reason: impl fmt::Display) -> Self {
        Self {
            path: path.to_path_buf(),
            reason: reason.to_string(),
        }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

impl std::error::Error for TlsError {}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}
