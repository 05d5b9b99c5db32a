//! Certificates of TLS tests.

use super::servers::folder;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::fs;
use std::path::PathBuf;

/// An authority, and a certificate and key for the server and for a client, all as PEM.
#[derive(Clone, Debug)]
pub struct TlsCertificates {
    /// The certificate of the authority.
    pub authority: String,
    /// The certificate and key of the server.
    pub server: (String, String),
    /// The certificate and key of a client.
    pub client: (String, String),
}

/// Creates an authority and its certificates.
///
/// # Panics
/// Without random bytes.
pub fn certificates() -> TlsCertificates {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Without a name of its own, what it certifies would look self-signed.
    params.distinguished_name.push(DnType::CommonName, "an authority");
    let authority = params.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(params, key);
    let certify = |name: &str| {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    };
    TlsCertificates {
        authority,
        server: certify("127.0.0.1"),
        client: certify("a client"),
    }
}

/// The files of a server's certificate, removed when it is dropped.
#[derive(Debug)]
pub struct TlsFolder {
    path: PathBuf,
}

impl TlsCertificates {
    /// Writes the server's files to a new folder.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn install(&self) -> TlsFolder {
        let path = folder("tls");
        let (certificate, key) = &self.server;
        for (name, text) in [
            ("server.pem", certificate),
            ("server.key", key),
            ("authority.pem", &self.authority),
        ] {
            fs::write(path.join(name), text).expect("a file");
        }
        TlsFolder { path }
    }
}

impl TlsFolder {
    /// The server's command line settings for these files.
    pub fn settings(&self) -> Vec<String> {
        let files = [
            ("--tls-cert-file", "server.pem"),
            ("--tls-key-file", "server.key"),
            ("--tls-ca-cert-file", "authority.pem"),
        ];
        let setting = |(name, file): (&str, &str)| [name.to_owned(), self.path.join(file).display().to_string()];
        files.into_iter().flat_map(setting).collect()
    }
}

impl Drop for TlsFolder {
    fn drop(&mut self) {
        // A leftover folder does no harm.
        let _ = fs::remove_dir_all(&self.path);
    }
}
