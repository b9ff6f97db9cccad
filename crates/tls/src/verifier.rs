//! The verification of a server's certificate.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, Error, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
};

/// As rustls verifies it, but without wildcards (RFC 9289 section 5.2.1).
#[derive(Debug)]
pub(crate) struct ExactNames(pub(crate) Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for ExactNames {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        if let ServerName::DnsName(name) = server_name {
            let certificate =
                webpki::EndEntityCert::try_from(end_entity).map_err(|_| CertificateError::BadEncoding)?;
            let expected = name.as_ref().trim_end_matches('.');
            if !certificate.valid_dns_names().any(|n| n.trim_end_matches('.').eq_ignore_ascii_case(expected))
            {
                let presented = certificate.valid_dns_names().map(str::to_owned).collect();
                let expected = server_name.to_owned();
                return Err(CertificateError::NotValidForNameContext { expected, presented }.into());
            }
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
