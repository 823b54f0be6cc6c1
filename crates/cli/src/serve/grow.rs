//! What `pinstripe grow` changes: the consistency policy, the bitmap, the journal's mode.

use pinstripe_control::{BitmapParameters, CallError, GrowParameters, JournalModeParameters, code};
use pinstripe_engine::{
    array::{Array, CommandError, Policy},
    options::JournalMode,
};

use super::{journal::ServerLog, refusal};

/// What a bit of a new bitmap covers unless told, as mdadm has it; and the most that it can.
const BITMAP_CHUNK_BYTES_MIN: u32 = 64 << 20;
const BITMAP_CHUNK_BYTES_MAX: u32 = 1 << 31;

/// Changes the consistency policy.
pub async fn policy(
    array: &Array,
    parameters: GrowParameters,
    journal: &ServerLog,
) -> Result<GrowParameters, CallError> {
    let wanted = &parameters.consistency_policy;
    let all = [Policy::Resync, Policy::Bitmap, Policy::Ppl, Policy::DoubleParityLog];
    let policy = all.into_iter().find(|policy| policy.name() == wanted);
    let unknown = || CallError::new(code::PARAMETERS, &format!("there is no consistency policy '{wanted}'"));
    let policy = policy.ok_or_else(unknown)?;
    array.set_policy(policy).await.map_err(|error| refusal::command(&error))?;
    journal.note(&format!("the consistency policy is {wanted} now"));
    Ok(parameters)
}

/// Says where writes are acknowledged from.
pub async fn journal_mode(
    array: &Array,
    parameters: JournalModeParameters,
    journal: &ServerLog,
) -> Result<JournalModeParameters, CallError> {
    let wanted = &parameters.journal_mode;
    let all = [JournalMode::WriteThrough, JournalMode::WriteBack];
    let mode = all.into_iter().find(|mode| mode.name() == wanted);
    let unknown = || CallError::new(code::PARAMETERS, &format!("there is no journal mode '{wanted}'"));
    let mode = mode.ok_or_else(unknown)?;
    array.set_journal_mode(mode).await.map_err(|error| refusal::command(&error))?;
    journal.note(&format!("the journal's mode is {wanted} now"));
    Ok(parameters)
}

/// Adds or removes the bitmap.
pub async fn bitmap(
    array: &Array,
    parameters: BitmapParameters,
    journal: &ServerLog,
) -> Result<(), CallError> {
    let BitmapParameters { internal, .. } = parameters;
    change_bitmap(array, parameters).await?;
    journal.note(if internal { "a bitmap was added" } else { "the bitmap was removed" });
    Ok(())
}

async fn change_bitmap(array: &Array, parameters: BitmapParameters) -> Result<(), CallError> {
    let words = |error: CommandError| refusal::command(&error);
    if !parameters.internal {
        return array.remove_bitmap().await.map_err(words);
    }
    if let Some(bytes) = parameters.chunk_bytes {
        let chunk = u32::try_from(bytes)
            .map_err(|_| refusal::refused(&format!("a bit can't cover {bytes} bytes")))?;
        return array.add_bitmap(chunk).await.map_err(words);
    }
    // The smallest for which there is room.
    let mut chunk = BITMAP_CHUNK_BYTES_MIN;
    loop {
        match array.add_bitmap(chunk).await {
            Err(CommandError::BitmapRoom(_)) if chunk < BITMAP_CHUNK_BYTES_MAX => chunk *= 2,
            other => return other.map_err(words),
        }
    }
}
