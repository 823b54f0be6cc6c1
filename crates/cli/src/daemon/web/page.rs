//! The pages: overview, login, what came of something. Pure.
//!
//! What comes from disks, sockets and the configuration is text that others wrote. maud escapes it, and
//! [`shown`] makes visible what can't be seen. No link begins with such text.

use std::time::{Duration, UNIX_EPOCH};

use maud::{DOCTYPE, Markup, html};
use pinstripe_control::text::printable;

use super::{
    array::{self, card},
    view::View,
};

/// Seconds since the epoch of a date that can be shown.
const LAST_DATE: u64 = 253_402_300_799;

/// Text that others wrote.
pub fn shown(text: &str) -> String {
    printable(text)
}

/// A page. `form`: what the session's forms carry; none without a session.
pub fn shell(title: &str, form: Option<&str>, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                link rel="icon" href="/icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="/page.css";
                script src="/page.js" defer {}
            }
            body {
                a class="skip" href="#content" { "To the content" }
                header class="top" {
                    a class="name" href="/" { "Pinstripe" }
                    @if let Some(form) = form {
                        form method="post" action="/logout" {
                            input type="hidden" name="form" value=(form);
                            button type="submit" class="quiet" { "End the session" }
                        }
                    }
                }
                (body)
            }
        }
    }
}

/// All arrays. `live`: [`content`] of the view.
pub fn overview(live: &Markup, form: &str, notice: Option<&str>) -> Markup {
    let body = html! {
        @if let Some(notice) = notice {
            p class="notice" role="status" { (shown(notice)) }
        }
        p id="state" class="small" role="status" { noscript { "Load the page again to see what is new." } }
        // Outside of what changes (WCAG 2.2.2); the script shows it.
        button id="pause" type="button" class="quiet" aria-pressed="false" hidden { "Pause" }
        (live)
    };
    shell("Pinstripe", Some(form), &body)
}

/// The part of the overview that changes.
pub fn content(view: &View) -> Markup {
    html! {
        main id="content" data-live="/live" {
            h1 { "Arrays on " (shown(&view.host)) }
            p class="sum" { (summary(view)) }
            @let is_wrong = view.configuration_error.is_some() || view.unserved.is_some();
            @if is_wrong || !view.alerts.is_empty() || !view.remarks.is_empty() { (alerts(view)) }
            @for array in &view.arrays { (card(array)) }
            (events(view))
            p class="small" data-key="version" { "Pinstripe " (shown(&view.pinstripe)) }
        }
    }
}

/// How things are, in a few words.
fn summary(view: &View) -> String {
    let total = view.arrays.len();
    if total == 0 {
        return "No array is configured, and none was found.".to_owned();
    }
    let troubled = view.arrays.iter().filter(|array| array::health(array).1 != "good").count();
    let arrays = if total == 1 { "1 array".to_owned() } else { format!("{total} arrays") };
    match troubled {
        0 => format!("{arrays}, all as they should be."),
        1 => format!("{arrays}, 1 of them needs a look."),
        troubled => format!("{arrays}, {troubled} of them need a look."),
    }
}

fn alerts(view: &View) -> Markup {
    html! {
        section class="alerts" data-key="alerts" aria-labelledby="alerts" {
            h2 id="alerts" { "Alerts" }
            ul {
                @if let Some(problem) = &view.configuration_error {
                    li { strong { "Configuration" } " It has errors, and the daemon goes by what it could take before: " (shown(problem)) }
                }
                @if let Some(problem) = &view.unserved {
                    li { strong { "Not served" } " It is tried again: " (shown(problem)) }
                }
                @for alert in &view.alerts {
                    li {
                        strong { (shown(&alert.array)) ": " (shown(&alert.alert)) }
                        " " (shown(&alert.message)) " " (time(alert.since))
                    }
                }
                @for remark in &view.remarks { li { (shown(remark)) } }
            }
        }
    }
}

fn events(view: &View) -> Markup {
    html! {
        section class="events" data-key="events" aria-labelledby="events" {
            h2 id="events" { "Last events" }
            @if view.events.is_empty() {
                p { "None yet." }
            } @else {
                // So that the keys scroll it.
                div class="scroll" tabindex="0" role="region" aria-labelledby="events" {
                    table {
                        thead { tr { th scope="col" { "Time" } th scope="col" { "Array" } th scope="col" { "Event" } th scope="col" { "What happened" } } }
                        tbody {
                            @for event in &view.events {
                                tr class=[event.alarming.then_some("alarming")] {
                                    td { (time(event.time)) }
                                    td { (shown(&event.array)) }
                                    td { @if event.alarming { "\u{26a0} " } (shown(&event.event)) }
                                    td { (shown(&event.message)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A moment, in seconds since the epoch.
pub fn time(seconds: u64) -> Markup {
    let moment = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST_DATE));
    let text = humantime::format_rfc3339_seconds(moment).to_string();
    html! { time datetime=(text) { (text.replace('T', " ").replace('Z', " UTC")) } }
}

/// Asks for the token.
pub fn login(wrong: bool) -> Markup {
    let body = html! {
        main id="content" class="narrow" {
            h1 { "Pinstripe" }
            @if wrong { p class="problem" role="alert" { "That is not the token." } }
            p { "The daemon's log says in which file the token is. Only the daemon's user can read it." }
            form method="post" action="/login" {
                // For the browser's store of passwords.
                input type="text" name="user" value="pinstripe" autocomplete="username" hidden;
                label for="token" { "Token" }
                input id="token" name="token" type="password" autocomplete="current-password" required autofocus;
                button type="submit" { "Open" }
            }
        }
    };
    shell("Pinstripe: token", None, &body)
}

/// A sentence, and the way back.
pub fn message(title: &str, sentence: &str, form: Option<&str>) -> Markup {
    let body = html! {
        main id="content" class="narrow" {
            h1 { (title) }
            p class="problem" role="alert" { (shown(sentence)) }
            p { a class="button" href="/" { "Back to the arrays" } }
        }
    };
    shell(title, form, &body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::web::sample::{self, HOSTILE, is_clean};

    #[test]
    fn names_of_others_are_text_and_nothing_else() {
        for name in HOSTILE {
            let view = sample::view(name);
            let text = overview(&content(&view), "f0", Some(name)).into_string();
            is_clean(&text);
            is_clean(&message("No", name, None).into_string());
        }
    }

    #[test]
    fn what_changes_by_itself_can_be_paused() {
        let text = overview(&content(&sample::view("data")), "f0", None).into_string();
        let button = "<button id=\"pause\" type=\"button\"";
        assert!(text.find(button).is_some_and(|place| place < text.find("<main").unwrap()), "{text}");
    }

    #[test]
    fn the_oracle_of_the_test_above_sees_what_is_not_escaped() {
        for text in [
            format!("<p>{}</p>", HOSTILE[0]),
            format!("<p title=\"{}\">x</p>", HOSTILE[1]),
            format!("<p title='{}'>x</p>", HOSTILE[2]),
            format!("<a href=\"{}\">x</a>", HOSTILE[3]),
            format!("<title>{}</title>", HOSTILE[4]),
            format!("<p>{}</p>", HOSTILE[5]),
            format!("<p>{}</p>", HOSTILE[6]),
            "<p onclick=\"x\">".to_owned(),
            "<p style=\"x\">".to_owned(),
            "<a href=\"//evil.example\">".to_owned(),
            "<p title=\"\" onclick=x>".to_owned(),
        ] {
            assert!(sample::fault(&text).is_some(), "{text}");
        }
    }

    #[test]
    fn the_sum_counts_what_needs_a_look() {
        let mut view = sample::view("data");
        assert_eq!(summary(&view), "1 array, 1 of them needs a look.");
        let mut whole = sample::view("data").arrays.remove(0);
        whole.detail = Some(sample::detail("data"));
        view.arrays = vec![whole];
        assert_eq!(summary(&view), "1 array, all as they should be.");
        view.arrays.clear();
        assert!(summary(&view).starts_with("No array"));
    }

    #[test]
    fn times_of_wrong_clocks_are_shown_too() {
        assert!(time(0).into_string().contains("1970-01-01 00:00:00 UTC"));
        assert!(time(u64::MAX).into_string().contains("9999-12-31 23:59:59 UTC"));
    }
}
