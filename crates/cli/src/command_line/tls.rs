//! How NBD clients are secured, as `serve` is told.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

#[derive(Clone, Debug, Args)]
pub struct TlsOptions {
    /// Have NBD clients use TLS, with the files server-cert.pem, server-key.pem, ca-cert.pem and (if it is
    /// there) ca-crl.pem of this folder. New files are used without a restart
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub tls_certificates: Option<PathBuf>,
    /// Whether NBD clients that come by TCP must use TLS. On unix sockets it is always their choice
    #[arg(long, value_enum, value_name = "HOW", default_value_t = TlsChoice::Require, requires = "tls_certificates")]
    pub tls: TlsChoice,
    /// Which clients TLS lets in
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = TlsClients::Certified, requires = "tls_certificates")]
    pub tls_clients: TlsClients,
    /// Let only clients in whose certificate is for this DNS name or IP address. Can be given several times
    #[arg(long, value_name = "NAME", requires = "tls_certificates")]
    pub tls_allow: Vec<String>,
}

/// Whether there must be TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TlsChoice {
    /// Nothing is served without it
    Require,
    /// Clients decide, and so does whatever lies between them and the server
    Allow,
}

/// Which clients may come by TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TlsClients {
    /// Those with a certificate that ca-cert.pem has signed
    Certified,
    /// Every one
    Any,
}
