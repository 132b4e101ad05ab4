//! TLS from `OTEL_EXPORTER_OTLP_CERTIFICATE`, `…_CLIENT_CERTIFICATE` and `…_CLIENT_KEY`, read once at start.

use std::path::Path;

use crate::config::settings::OtlpSettings;

const BEGIN_CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// The files' contents.
struct Material {
    /// The only authorities that are trusted; the system's where there are none.
    authorities: Option<Vec<u8>>,
    /// Certificate chain and key.
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

fn read_material(settings: &OtlpSettings) -> Result<Material, String> {
    let read = |what: &str, path: &Path| {
        std::fs::read(path).map_err(|error| format!("the {what} file {} cannot be read: {error}", path.display()))
    };
    let authorities =
        settings.certificate.as_deref().map(|path| read("OTEL_EXPORTER_OTLP_CERTIFICATE", path)).transpose()?;
    if let Some(pem) = &authorities
        && !pem.windows(BEGIN_CERTIFICATE.len()).any(|window| window == BEGIN_CERTIFICATE)
    {
        return Err("OTEL_EXPORTER_OTLP_CERTIFICATE names a file without a certificate in PEM form".to_owned());
    }
    let identity = match (&settings.client_certificate, &settings.client_key) {
        (Some(certificate), Some(key)) => Some((
            read("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", certificate)?,
            read("OTEL_EXPORTER_OTLP_CLIENT_KEY", key)?,
        )),
        (None, None) => None,
        _ => {
            return Err("a client certificate needs both OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and \
                        OTEL_EXPORTER_OTLP_CLIENT_KEY"
                .to_owned());
        }
    };
    Ok(Material { authorities, identity })
}

#[cfg(feature = "otlp-http")]
pub(super) fn configure_reqwest(
    mut builder: reqwest::ClientBuilder,
    settings: &OtlpSettings,
) -> Result<reqwest::ClientBuilder, String> {
    let material = read_material(settings)?;
    // Whatever other backends are compiled in.
    builder = builder.tls_backend_rustls();
    if let Some(pem) = material.authorities {
        let certificates = reqwest::Certificate::from_pem_bundle(&pem)
            .map_err(|_| "OTEL_EXPORTER_OTLP_CERTIFICATE names a file with a broken certificate".to_owned())?;
        builder = builder.tls_certs_only(certificates);
    }
    if let Some((mut pem, key)) = material.identity {
        pem.push(b'\n');
        pem.extend_from_slice(&key);
        let identity = reqwest::Identity::from_pem(&pem)
            .map_err(|_| "the client certificate or its key is not usable PEM".to_owned())?;
        builder = builder.identity(identity);
    }
    Ok(builder)
}

#[cfg(feature = "otlp-grpc")]
pub(super) fn tonic_config(settings: &OtlpSettings) -> Result<tonic::transport::ClientTlsConfig, String> {
    use tonic::transport::{Certificate, ClientTlsConfig, Identity};

    let material = read_material(settings)?;
    let mut config = match material.authorities {
        Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((certificate, key)) = material.identity {
        config = config.identity(Identity::from_pem(certificate, key));
    }
    Ok(config)
}
