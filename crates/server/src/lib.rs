//! The embeddable NFS and iSCSI service: exports and their access rules, NFS versions 3, 4.1 and 4.2 and
//! MOUNT on [`millrace_vfs::FileSystem`], iSCSI targets on files of the exports, transports, limits, statistics, start and stop.
//!
//! A program builds a [`Config`], starts a [`Server`] and reads [`Stats`]. The configuration file, the
//! metrics endpoint and the registration with rpcbind are in the crate `millrace-daemon`.

mod announce;
mod backend;
mod bulk;
#[cfg(feature = "call-counts")]
pub mod call_counts;
mod callbacks;
mod certificate_rule;
mod check_files;
mod client_list;
mod client_rule;
mod config;
mod delegations;
mod drc;
mod error;
mod export;
mod file_key;
mod groups;
mod handle;
mod hosted;
mod kerberos;
mod limits;
mod listen;
mod metrics;
mod mount3;
mod namespace;
mod network;
mod nfs3;
mod nfs4;
mod nfs4_clients;
mod nfs4_settings;
mod own_files;
mod owners;
mod procedures;
mod reload;
mod security;
mod server;
mod shard;
mod shared;
mod siphash;
mod space;
mod stats_sources;
mod target_settings;
mod targets;
mod usage;
mod validate;

pub use millrace_buffer::ByteSize;
pub use millrace_nfs4_state::{ClientReport, DelegationKind, StateidKind, StateidPosition};
pub use millrace_oncrpc::{TransportSecurity, UserIds, gss::GssStats};
pub use millrace_tls::{AltName, ServerFiles, TlsStats, without_zeros};
pub use millrace_vfs::Identity;

pub use backend::{Resources, open};
pub use certificate_rule::CertificateRule;
pub use client_rule::{ClientRule, Squash};
pub use config::{Backend, Config, Delegations, ExportConfig, Identities, StageSampling};
pub use error::{InvalidSetting, ServerError};
pub use hosted::Hosted;
pub use kerberos::{KerberosSettings, LocalUser};
pub use limits::{Limits, MAX_TRANSFER, TRANSFER_UNIT};
pub use metrics::{ConnectionStats, RdmaStats, Stats};
pub use nfs4::administration::{FileState, Nfs4State, StateError, StateFilter};
pub use nfs4_clients::Protection;
pub use nfs4_settings::Nfs4Settings;
pub use procedures::ProcedureStats;
pub use reload::Reloaded;
pub use security::SecurityFlavors;
pub use server::{Running, Server};
pub use stats_sources::StatsReader;
pub use target_settings::{LunSettings, TargetSettings, target_name};
pub use targets::{IscsiStats, LunStats};
pub use usage::{LATENCY_BUCKETS, LatencyStats, UsageStats};

/// The program of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
