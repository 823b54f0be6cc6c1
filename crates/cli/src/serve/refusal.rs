//! Why a call wasn't carried out, as the protocol's errors.

use pinstripe_control::{CallError, code};
use pinstripe_engine::{array::CommandError, maintenance::SyncError};

/// Nothing was changed.
pub fn refused(message: &(impl ToString + ?Sized)) -> CallError {
    CallError::new(code::REFUSED, message)
}

/// There is nothing of this name.
pub fn not_found(message: &(impl ToString + ?Sized)) -> CallError {
    CallError::new(code::NOT_FOUND, message)
}

/// It was tried.
pub fn failed(message: &(impl ToString + ?Sized)) -> CallError {
    CallError::new(code::FAILED, message)
}

/// What the array said to a command.
pub fn command(error: &CommandError) -> CallError {
    use CommandError as E;
    match error {
        E::NoSuchSlot { .. } | E::NoSuchDevice(_) | E::NoSpare => not_found(error),
        E::NotTakenIn(_) | E::Device { .. } | E::Io(_) => failed(error),
        E::SlotEmpty(_)
        | E::SlotNeeded(_)
        | E::NotReplaceable { .. }
        | E::OtherSlotEmpty { .. }
        | E::Epoch { .. }
        | E::InUse { .. }
        | E::Ahead { .. }
        | E::NoRedundancy
        | E::ReadOnly
        | E::Policy(_)
        | E::Placement { .. }
        | E::AlreadyMember(_)
        | E::Copy { .. }
        | E::HoldsTorn(_)
        | E::LogicalBlock { .. }
        | E::Bitmap(_)
        | E::RequestsUnderWay { .. }
        | E::BitmapRoom(_) => refused(error),
    }
}

/// What the array said about maintenance.
pub fn sync(error: &SyncError) -> CallError {
    match error {
        SyncError::Command(error) => command(error),
        SyncError::Range { .. } | SyncError::Speed { .. } => CallError::new(code::PARAMETERS, error),
        SyncError::OneParity | SyncError::TooMany | SyncError::NothingToStop | SyncError::Needed(_) => {
            refused(error)
        }
    }
}
