//! Certificates, made for the test.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// An authority, and what it has certified: for the server and for a client.
pub(crate) struct TlsFiles {
    pub(crate) authority: String,
    pub(crate) server: (String, String),
    pub(crate) client: (String, String),
}

pub(crate) fn certificates() -> TlsFiles {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Or what it certifies would seem to have certified itself.
    params.distinguished_name.push(DnType::CommonName, "an authority");
    let authority = params.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(params, key);
    let certify = |name: &str| {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    };
    TlsFiles {
        authority,
        server: certify("127.0.0.1"),
        client: certify("a client"),
    }
}
