//! Where requests go: into the engine, or to the export of a server.

use std::{rc::Rc, sync::Arc};

use pinstripe_engine::{error::IoError, io::volume::Volume, shared::Shared};
use pinstripe_runtime::{Buffer, Device, DeviceError, DeviceSource, Slice, shard};
use thiserror::Error;

/// Why a request failed.
#[derive(Debug, Error)]
pub enum RequestError {
    /// By the engine.
    #[error(transparent)]
    Engine(#[from] IoError),
    /// By the export.
    #[error("the export: {0}")]
    Export(#[from] DeviceError),
    /// It didn't: a read has found what it must not.
    #[error("wrong data: {0}: a bug of Pinstripe")]
    Wrong(String),
}

/// What every shard makes its [`Destination`] of.
#[derive(Clone)]
pub(crate) enum Source {
    Engine(Arc<Shared>),
    Export(Arc<dyn DeviceSource>),
}

impl Source {
    pub(crate) fn open(&self) -> Result<Destination, DeviceError> {
        Ok(match self {
            Self::Engine(shared) => Destination::Engine(Volume::new(Arc::clone(shared))),
            Self::Export(source) => Destination::Export(source.attach()?),
        })
    }
}

/// On one shard.
#[derive(Clone)]
pub(crate) enum Destination {
    Engine(Volume),
    Export(Rc<dyn Device>),
}

impl Destination {
    pub(crate) async fn read(&self, offset: u64, buffer: Buffer) -> (Result<(), RequestError>, Buffer) {
        match self {
            Self::Engine(volume) => {
                let (result, buffer) = volume.read(offset, buffer).await;
                (result.map_err(RequestError::from), buffer)
            }
            Self::Export(export) => {
                let outcome = export.read(offset, buffer).await;
                let buffer = outcome.buffer.unwrap_or_else(|| shard::buffer(0));
                (outcome.result.map(|_| ()).map_err(RequestError::from), buffer)
            }
        }
    }

    pub(crate) async fn write(&self, offset: u64, data: Slice) -> Result<(), RequestError> {
        match self {
            Self::Engine(volume) => Ok(volume.write(offset, data, false).await?),
            Self::Export(export) => {
                export.write(offset, data, false).await.result?;
                Ok(())
            }
        }
    }

    pub(crate) async fn flush(&self) -> Result<(), RequestError> {
        match self {
            Self::Engine(volume) => Ok(volume.flush().await?),
            Self::Export(export) => {
                export.flush().await.result?;
                Ok(())
            }
        }
    }

    /// Bytes of what requests must be multiples of.
    pub(crate) fn block(&self) -> u32 {
        match self {
            Self::Engine(volume) => volume.shared().geometry.logical_block(),
            Self::Export(export) => export.info().logical_block,
        }
    }
}
