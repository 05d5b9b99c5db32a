//! Accepts clients by the names in their certificates.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::sync::Arc;
use webpki::EndEntityCert;

/// Accepts a client whose certificate is valid and holds one of these names.
#[derive(Debug)]
pub(super) struct ClientNameVerifier {
    verifier: Arc<dyn ClientCertVerifier>,
    names: Box<[Box<str>]>,
}

impl ClientNameVerifier {
    pub(super) fn new(verifier: Arc<dyn ClientCertVerifier>, names: Box<[Box<str>]>) -> Self {
        Self { verifier, names }
    }

    /// True if the certificate holds one of the names. They are compared literally: a wildcard matches only itself.
    fn accepts(&self, certificate: &CertificateDer<'_>) -> bool {
        let Ok(certificate) = EndEntityCert::try_from(certificate) else {
            return false;
        };
        let mut names = certificate.valid_dns_names().chain(certificate.valid_uri_names());
        names.any(|name| self.names.iter().any(|allowed| &**allowed == name))
    }
}

/// Signatures are those of any client: the inner verifier checks them.
macro_rules! verify_signature {
    ($($name:ident),+) => {
        $(fn $name(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.verifier.$name(message, certificate, signature)
        })+
    };
}

impl ClientCertVerifier for ClientNameVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(certificate, intermediates, now)?;
        match self.accepts(certificate) {
            true => Ok(verified),
            false => Err(Error::InvalidCertificate(CertificateError::NotValidForName)),
        }
    }

    verify_signature!(verify_tls12_signature, verify_tls13_signature);

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }

    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }
}
