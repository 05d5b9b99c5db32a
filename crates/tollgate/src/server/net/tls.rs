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

/// Certificates in use. They can change under running connections, which keep those they began with.
pub struct Tls {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
    /// Of what the files held when they were last looked at, whether or not it could be used.
    last_digest: Mutex<[u8; 32]>,
}

/// Where certificates are. All files are PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate and those between it and a root, in this order.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// Roots of the certificates that clients must show; none: clients need not show any.
    pub client_ca: Option<PathBuf>,
    /// Names of which a client's certificate must hold one: DNS names or URIs, as they stand there. None: any will do.
    pub client_names: Option<Box<[Box<str>]>>,
}

/// What looking at the files again came to.
#[derive(Debug)]
pub enum TlsReload {
    /// They are as they were.
    Unchanged,
    /// They have changed, and new connections use them.
    Reloaded,
    /// They have changed and cannot be used: what was in use stays.
    Failed(TlsError),
}

impl Tls {
    /// How often the files are looked at.
    pub const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let contents = FileContents::read(&files)?;
        Ok(Self {
            config: ArcSwap::from_pointee(contents.config(&files)?),
            last_digest: Mutex::new(contents.digest()),
            files,
        })
    }

    /// For one new connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Whether clients have to show a certificate.
    pub fn requires_client_certificate(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Looks at the files and takes what has changed, if it can be used.
    ///
    /// The contents are compared and not the times of the files: they are small, and a file that was swapped by a link or
    /// written twice in a moment is not missed. A certificate and a key that do not belong together, because only one is
    /// written yet, are a change that cannot be used, followed by one that can.
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

    /// Looks at the files every second, for as long as it is polled.
    pub async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(Self::RELOAD_INTERVAL).await;
            let tls = Arc::clone(&self);
            match tokio::task::spawn_blocking(move || tls.reload_if_changed()).await {
                Ok(TlsReload::Reloaded) => {
                    tracing::info!(file = %self.files.certificate.display(), "certificates reloaded")
                }
                Ok(TlsReload::Failed(error)) => {
                    tracing::error!(%error, "changed certificates cannot be used; the old ones stay");
                }
                Ok(TlsReload::Unchanged) | Err(_) => {}
            }
        }
    }
}

/// What stands in the files.
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
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
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

/// Why certificates cannot be used. The operator's to mend.
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
