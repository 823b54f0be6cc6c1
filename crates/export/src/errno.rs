//! Error numbers of Linux, by which the kernel's drivers are told why a request failed.

use pinstripe_block::ServiceError;

pub(crate) const NO_PERMISSION: i32 = 1;
pub(crate) const NO_ENTRY: i32 = 2;
pub(crate) const INTERRUPTED: i32 = 4;
pub(crate) const IO: i32 = 5;
pub(crate) const NO_SUCH_ADDRESS: i32 = 6;
pub(crate) const AGAIN: i32 = 11;
pub(crate) const NO_MEMORY: i32 = 12;
pub(crate) const NO_DEVICE: i32 = 19;
pub(crate) const INVALID: i32 = 22;
pub(crate) const NO_SPACE: i32 = 28;
pub(crate) const READ_ONLY: i32 = 30;
pub(crate) const NO_FUNCTION: i32 = 38;
pub(crate) const PROTOCOL: i32 = 71;
pub(crate) const NOT_SUPPORTED: i32 = 95;
pub(crate) const STALE: i32 = 116;

/// The error number that tells the kernel why a request failed.
pub(crate) fn error_number(error: ServiceError) -> i32 {
    match error {
        ServiceError::Io => IO,
        ServiceError::NoSpace => NO_SPACE,
        ServiceError::ReadOnly => READ_ONLY,
        ServiceError::Resources => NO_MEMORY,
        ServiceError::Stopping | ServiceError::Gone => NO_DEVICE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_is_a_success_to_the_kernel() {
        for error in [
            ServiceError::Io,
            ServiceError::NoSpace,
            ServiceError::ReadOnly,
            ServiceError::Resources,
            ServiceError::Stopping,
            ServiceError::Gone,
        ] {
            assert!(error_number(error) > 0);
        }
        assert_eq!(error_number(ServiceError::Io), 5);
        assert_eq!(error_number(ServiceError::NoSpace), 28);
    }
}
