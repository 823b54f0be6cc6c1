//! The server's half of the calls about recordings.

use pinstripe_control::{
    CallError, code,
    record::{Operation, RecordAction, RecordParameters, RecordResult, Recorded},
};
use pinstripe_engine::{
    io::recorder::{Asked, Fetched, PATIENCE_NANOSECONDS, Recorder},
    latency::ClientOperation,
};
use pinstripe_runtime::shard;

use super::{
    journal::ServerLog,
    refusal::{not_found, refused},
    stopping::Stopping,
};

/// Requests of an answer: what the shard that makes it does without a break is bounded.
const ANSWER_REQUESTS: usize = 2048;
/// A call waits for an answer's worth of requests for so long at most, and looks for them so often.
const WAIT_MS_MAX: u64 = 1000;
const LOOK_NANOSECONDS: u64 = 10_000_000;
const SECOND: u64 = 1_000_000_000;

/// Does what a reader asks for.
pub async fn record(
    recorder: &Recorder,
    parameters: RecordParameters,
    journal: &ServerLog,
    stopping: &Stopping,
) -> Result<RecordResult, CallError> {
    let RecordParameters { action, recording, wait_ms } = parameters;
    let (number, ends) = match (action, recording) {
        (RecordAction::Start, None) if stopping.is_wanted() => return Err(is_stopping()),
        (RecordAction::Start, None) => return start(recorder, journal),
        (RecordAction::Next, Some(number)) => (number, false),
        (RecordAction::Stop, Some(number)) => (number, true),
        _ => {
            let words = "next and stop need the number of a recording, which start gives";
            return Err(CallError::new(code::PARAMETERS, words));
        }
    };
    if !ends {
        wait(recorder, wait_ms.min(WAIT_MS_MAX) * 1_000_000, stopping).await;
    }
    let fetched = recorder.fetch(number, shard::now(), ANSWER_REQUESTS, ends);
    let Some(Fetched { requests, lost, more }) = fetched else {
        let patience = PATIENCE_NANOSECONDS / SECOND;
        let words = format!("there is no recording {number}: one is over {patience} s after its last call");
        return Err(not_found(&words));
    };
    if stopping.is_wanted() && requests.is_empty() && !ends {
        return Err(is_stopping());
    }
    if ends && !more {
        journal.note("the recording of requests has ended");
    }
    Ok(RecordResult { recording: number, requests: requests.into_iter().map(recorded).collect(), lost, more })
}

fn is_stopping() -> CallError {
    CallError::new(code::STOPPING, super::control::STOPPING)
}

fn start(recorder: &Recorder, journal: &ServerLog) -> Result<RecordResult, CallError> {
    let Some(recording) = recorder.start(shard::now()) else {
        return Err(refused(&format!(
            "the requests are being recorded already; a recording that isn't fetched is over after {} s",
            PATIENCE_NANOSECONDS / SECOND
        )));
    };
    journal.note("requests are being recorded, as asked for");
    Ok(RecordResult { recording, requests: Vec::new(), lost: 0, more: false })
}

/// Until there is an answer's worth, or the time is over, or the array stops.
async fn wait(recorder: &Recorder, nanoseconds: u64, stopping: &Stopping) {
    let end = shard::now() + nanoseconds;
    while recorder.waiting() < ANSWER_REQUESTS && !stopping.is_wanted() {
        let left = end.saturating_sub(shard::now());
        if left == 0 {
            return;
        }
        shard::sleep(left.min(LOOK_NANOSECONDS)).await;
    }
}

fn recorded(asked: Asked) -> Recorded {
    let Asked { at_ns, operation, offset, length, fua } = asked;
    let operation = match operation {
        ClientOperation::Read => Operation::Read,
        ClientOperation::Write => Operation::Write,
        ClientOperation::Flush => Operation::Flush,
        ClientOperation::Discard => Operation::Discard,
        ClientOperation::WriteZeroes => Operation::WriteZeroes,
    };
    Recorded(at_ns, operation, offset, length, fua)
}

#[cfg(test)]
mod tests {
    use pinstripe_runtime::uring::{self, RuntimeConfig};

    use super::*;

    #[test]
    fn a_recording_begins_in_no_server_that_is_stopping() {
        uring::run(&RuntimeConfig::unpinned(1), |_| async {
            let (recorder, stopping) = (Recorder::default(), Stopping::new());
            let journal = ServerLog::new(false, "data").unwrap();
            stopping.want();
            let start = RecordParameters { action: RecordAction::Start, recording: None, wait_ms: 0 };
            let refused = record(&recorder, start, &journal, &stopping).await.unwrap_err();
            assert_eq!(refused.code, code::STOPPING);
            assert!(!recorder.is_on(shard::now()));
        })
        .unwrap();
    }
}
