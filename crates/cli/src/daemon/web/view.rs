//! All that the page shows, at one moment.

use pinstripe_control::{
    Detail,
    daemon::{AlertStatus, ArrayStatus},
};

use super::last_hour::Step;
use crate::history::Told;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The machine.
    pub host: String,
    pub pinstripe: String,
    /// Why a later configuration doesn't count.
    pub configuration_error: Option<String>,
    /// Why metrics or the page are not served as the configuration says.
    pub unserved: Option<String>,
    /// What the latest look for members could not read.
    pub remarks: Vec<String>,
    /// The alerts that aren't over.
    pub alerts: Vec<AlertStatus>,
    pub arrays: Vec<ArrayView>,
    /// The last events, newest first.
    pub events: Vec<Told>,
}

/// An array.
#[derive(Clone, Debug)]
pub struct ArrayView {
    pub status: ArrayStatus,
    /// What its server says, if it answers.
    pub detail: Option<Detail>,
    /// The last hour, oldest first.
    pub hour: Vec<Option<Step>>,
}

impl View {
    /// The array with this UUID, if its server answers.
    pub fn served(&self, uuid: &str) -> Option<(&ArrayStatus, &Detail)> {
        let served = self.arrays.iter().filter_map(|array| Some((&array.status, array.detail.as_ref()?)));
        let mut of_uuid = served.filter(|(_, detail)| detail.uuid == uuid);
        of_uuid.next()
    }
}
