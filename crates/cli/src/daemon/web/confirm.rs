//! Before something is done: the page that asks for a device where one is needed, and the page that says what
//! will happen to which device. Pure.

use maud::{Markup, html};
use pinstripe_control::Detail;

use super::{
    action::{Action, Fields, field},
    page::{self, shell, shown},
};

/// What is answered: a page, or why there is none.
pub fn page(detail: &Detail, fields: &Fields, form: &str) -> Result<Markup, String> {
    let lacks = |name: &str| field(fields, name).is_none();
    match field(fields, "action") {
        Some("add") if lacks("device") => Ok(ask(detail, fields, "device", form)),
        Some("replace") if lacks("with") => Ok(ask(detail, fields, "with", form)),
        _ => {
            let action = Action::read(fields)?;
            let effects = action.effects(detail)?;
            Ok(confirm(detail, &action, &effects, form))
        }
    }
}

/// Asks for a device. Nothing is done by this form: it leads to the confirmation.
fn ask(detail: &Detail, fields: &Fields, name: &str, form: &str) -> Markup {
    let is_new = name == "device";
    let title = if is_new { "Add a device" } else { "Replace a member" };
    let body = html! {
        main id="content" class="narrow" {
            h1 { (title) }
            @if is_new {
                p { "To the array " strong { (shown(&detail.name)) } "." }
            } @else {
                p {
                    "Slot " (shown(field(fields, "slot").unwrap_or_default())) " of the array " strong { (shown(&detail.name)) }
                    ", with " (shown(field(fields, "device").unwrap_or_default())) "."
                }
            }
            form method="get" action="/confirm" {
                @for own in ["array", "action", "slot", "device"].into_iter().filter(|own| *own != name) {
                    @if let Some(value) = field(fields, own) { input type="hidden" name=(own) value=(value); }
                }
                label for="device" { @if is_new { "Device" } @else { "New device" } }
                input id="device" name=(name) type="text" autocomplete="off" spellcheck="false" required[is_new] autofocus
                    placeholder="/dev/disk/by-id/…" aria-describedby="hint";
                p id="hint" class="small" {
                    "An absolute path, or a name that begins with nvme-tcp:// or pmem:/."
                    @if !is_new && !detail.spares.is_empty() { " Leave it empty to use a spare: " (shown(&detail.spares.join(", "))) "." }
                }
                p class="acts" {
                    button type="submit" { "Go on" }
                    " "
                    a class="button" href="/" { "Cancel" }
                }
            }
        }
    };
    shell(title, Some(form), &body)
}

fn confirm(detail: &Detail, action: &Action, effects: &[String], form: &str) -> Markup {
    let title = format!("{}?", action.in_words());
    let body = html! {
        main id="content" class="narrow" {
            h1 { (title) }
            dl {
                dt { "Array" }
                dd { (shown(&detail.name)) " (" (shown(&detail.uuid)) ")" }
                @if let Some(device) = device(action) { dt { "Device" } dd class="device" { (shown(device)) } }
            }
            ul class="effects" { @for effect in effects { li { (shown(effect)) } } }
            form method="post" action="/act" {
                input type="hidden" name="form" value=(form);
                input type="hidden" name="array" value=(detail.uuid);
                @for (name, value) in action.fields() { input type="hidden" name=(name) value=(value); }
                p class="acts" {
                    button type="submit" class=[matches!(action, Action::Fail { .. }).then_some("danger")] { (action.in_words()) }
                    " "
                    a class="button" href="/" { "Cancel" }
                }
            }
        }
    };
    shell(&title, Some(form), &body)
}

/// The device that it is about.
fn device(action: &Action) -> Option<&str> {
    match action {
        Action::Fail { device, .. }
        | Action::Replace { device, .. }
        | Action::Add { device }
        | Action::Remove { device } => Some(device),
        Action::Check | Action::Stop => None,
    }
}

/// Says why nothing was done.
pub fn refused(why: &str, form: &str) -> Markup {
    page::message("Nothing was done", why, Some(form))
}

/// Says that something may have been done.
pub fn unknown(why: &str, form: &str) -> Markup {
    page::message("It is not known what was done: see the array", why, Some(form))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::web::sample::{self, HOSTILE, is_clean};

    fn asked(detail: &Detail, pairs: &[(&str, &str)]) -> Result<String, String> {
        let fields = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        page(detail, &fields, "f0").map(Markup::into_string)
    }

    #[test]
    fn what_is_confirmed_names_the_device_and_is_sent_as_it_stands() {
        let detail = sample::detail("data");
        let fail = [("action", "fail"), ("slot", "1"), ("device", "/dev/m1")];
        let text = asked(&detail, &fail).unwrap();
        assert!(text.contains("stops using /dev/m1, at once"), "{text}");
        for (name, value) in fail.iter().chain(&[("form", "f0"), ("array", "u:1")]) {
            let input = format!("<input type=\"hidden\" name=\"{name}\" value=\"{value}\">");
            assert!(text.contains(&input), "{input} is missing in {text}");
        }
        assert!(asked(&detail, &[("action", "fail"), ("slot", "1"), ("device", "/dev/m2")]).is_err());
    }

    #[test]
    fn a_device_is_asked_for_first() {
        let mut detail = sample::detail("data");
        let replace = [("action", "replace"), ("slot", "1"), ("device", "/dev/m1"), ("array", "u:1")];
        let text = asked(&detail, &replace).unwrap();
        assert!(
            text.contains("name=\"with\"") && text.contains("Leave it empty to use a spare: /dev/spare"),
            "{text}"
        );
        assert!(!text.contains("method=\"post\" action=\"/act\""), "{text}");
        let text = asked(&detail, &[&replace[..], &[("with", "")]].concat()).unwrap();
        assert!(text.contains("to the spare /dev/spare"), "{text}");
        detail.spares.clear();
        assert!(asked(&detail, &[&replace[..], &[("with", "")]].concat()).unwrap_err().contains("no spare"));
        let text = asked(&detail, &[("action", "add")]).unwrap();
        assert!(text.contains("name=\"device\"") && text.contains("required"), "{text}");
        let text = asked(&detail, &[("action", "add"), ("device", "/dev/n")]).unwrap();
        assert!(text.contains("becomes a spare"), "{text}");
    }

    #[test]
    fn hostile_names_are_text_here_too() {
        for name in HOSTILE {
            let mut detail = sample::detail(name);
            let device = format!("/dev/{name}").replace(char::is_control, "");
            detail.members[1].device = Some(device.clone());
            let fail = [("action", "fail"), ("slot", "1"), ("device", device.as_str())];
            is_clean(&asked(&detail, &fail).unwrap());
            is_clean(&asked(&detail, &[("action", "add"), (name, name)]).unwrap());
            is_clean(
                &asked(&detail, &[("action", "add"), ("device", &device.replace("/dev", "/d"))]).unwrap(),
            );
            is_clean(&refused(&asked(&detail, &[("action", name)]).unwrap_err(), "f0").into_string());
        }
    }
}
