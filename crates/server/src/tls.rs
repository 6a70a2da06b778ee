//! TLS, by rustls.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::Tls;

/// An acceptor for connections with the certificates of the files.
///
/// # Errors
/// The file that cannot be used, and the reason.
pub(crate) fn acceptor(tls: &Tls) -> Result<TlsAcceptor, String> {
    let named = |file: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let of_certificates = |error| named(&tls.certificate_file, &error);
    let certificates = CertificateDer::pem_file_iter(&tls.certificate_file)
        .map_err(of_certificates)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(of_certificates)?;
    let key = PrivateKeyDer::from_pem_file(&tls.key_file)
        .map_err(|error| named(&tls.key_file, &error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|error| named(&tls.certificate_file, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
