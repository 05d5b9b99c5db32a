//! Certificates for tests, and clients that show them.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_rustls::TlsConnector;
use tollgate::server::net::tls::TlsFiles;

/// A folder that goes with the test.
pub struct Folder(pub PathBuf);

/// A certificate authority.
pub type Authority = CertifiedIssuer<'static, KeyPair>;

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tls-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn files(&self, client_ca: Option<&str>) -> TlsFiles {
        TlsFiles {
            certificate: self.0.join("server.pem"),
            key: self.0.join("server.key"),
            client_ca: client_ca.map(|name| self.0.join(name)),
            client_names: None,
        }
    }

    /// A new certificate for the server.
    pub fn sign(&self, authority: &Authority) {
        let (certificate, key) = signed(authority);
        fs::write(self.0.join("server.pem"), certificate.pem()).unwrap();
        fs::write(self.0.join("server.key"), key.serialize_pem()).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

pub fn signed(authority: &Authority) -> (rcgen::Certificate, KeyPair) {
    signed_for(authority, &["localhost"])
}

/// A certificate that holds these names; one with a colon is a URI.
pub fn signed_for(authority: &Authority, names: &[&str]) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    let name = |name: &&str| match name.contains(':') {
        true => SanType::URI((*name).try_into().unwrap()),
        false => SanType::DnsName((*name).try_into().unwrap()),
    };
    params.subject_alt_names = names.iter().map(name).collect();
    (params.signed_by(&key, authority).unwrap(), key)
}

/// A client that trusts one authority, with a certificate of its own if it has one.
pub fn client(trusts: &Authority, shows: Option<(rcgen::Certificate, KeyPair)>, alpn: &[&[u8]]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(trusts.der().to_vec())).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match shows {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}
