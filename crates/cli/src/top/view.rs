//! The view on a terminal: a table of all arrays, or the page of one.

use ratatui::{
    Frame,
    crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::Line,
    widgets::{Block, Paragraph, Row, Table, TableState},
};

use super::{
    sample::Sample,
    text::{self, HEADS, Tone},
};

/// Columns that a narrow terminal doesn't show, the least important first.
const LESS_IMPORTANT: [usize; 7] = [1, 10, 9, 8, 7, 6, 3];
/// Between two columns.
const SPACING: u16 = 2;

/// What of the samples is looked at.
#[derive(Debug, Default)]
pub struct View {
    /// The control socket of the array that is marked.
    marked: Option<String>,
    /// Whether only that one is shown.
    is_open: bool,
    /// Lines of its page that are above the screen.
    scrolled: usize,
}

impl View {
    /// What a key does. True at the end.
    pub fn press(&mut self, key: KeyEvent, samples: &[Sample]) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        match key.code {
            KeyCode::Char('q') => return true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => self.is_open = false,
            KeyCode::Enter => {
                self.is_open = !self.is_open && !samples.is_empty();
                self.scrolled = 0;
            }
            KeyCode::Up if self.is_open => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Down if self.is_open => self.scrolled += 1,
            KeyCode::Up => self.mark(self.position(samples).saturating_sub(1), samples),
            KeyCode::Down => self.mark(self.position(samples) + 1, samples),
            _ => {}
        }
        false
    }

    /// The marked array; the first one if that has gone.
    fn position(&self, samples: &[Sample]) -> usize {
        let is_marked = |sample: &Sample| Some(&sample.control) == self.marked.as_ref();
        samples.iter().position(is_marked).unwrap_or(0)
    }

    fn mark(&mut self, position: usize, samples: &[Sample]) {
        let last = samples.len().saturating_sub(1);
        self.marked = samples.get(position.min(last)).map(|sample| sample.control.clone());
    }

    /// Draws the samples; `nothing` if there are none.
    pub fn draw(&mut self, frame: &mut Frame<'_>, samples: &[Sample], nothing: &str) {
        let [body, foot] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        let position = self.position(samples);
        // An array that comes before the marked one doesn't move the mark, and one that goes closes its page.
        if samples.get(position).map(|sample| &sample.control) != self.marked.as_ref() {
            self.is_open = self.is_open && self.marked.is_none();
            self.mark(position, samples);
        }
        let keys = match samples.get(position) {
            None => {
                frame.render_widget(Paragraph::new(nothing), body);
                "q quit"
            }
            Some(sample) if self.is_open => {
                self.draw_page(frame, body, sample);
                "q quit   Esc all arrays   Up, Down scroll"
            }
            Some(_) => {
                draw_table(frame, body, samples, position);
                "q quit   Up, Down mark   Enter one array"
            }
        };
        frame.render_widget(Paragraph::new(keys).style(Style::new().add_modifier(Modifier::DIM)), foot);
    }

    fn draw_page(&mut self, frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
        let lines = text::page(sample);
        let block = Block::bordered().title(format!(" {} ", text::name(sample)));
        let height = usize::from(block.inner(area).height);
        self.scrolled = self.scrolled.min(lines.len().saturating_sub(height));
        let shown = lines.into_iter().skip(self.scrolled);
        let shown: Vec<Line<'_>> = shown.map(|line| Line::from(line.text).style(style(line.tone))).collect();
        frame.render_widget(Paragraph::new(shown).block(block), area);
    }
}

fn style(tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Heading => Style::new().add_modifier(Modifier::BOLD),
        Tone::Good => Style::new().fg(Color::Green),
        Tone::Warning => Style::new().fg(Color::Yellow),
        Tone::Bad => Style::new().fg(Color::Red),
    }
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, samples: &[Sample], position: usize) {
    let cells: Vec<_> = samples.iter().map(text::cells).collect();
    let all: Vec<_> = std::iter::once(HEADS.map(str::to_owned)).chain(cells.iter().cloned()).collect();
    let widths = text::widths(&all).map(|width| u16::try_from(width).unwrap_or(u16::MAX));
    let columns = columns(widths, area.width);
    let row = |cells: [String; HEADS.len()]| {
        Row::new(columns.iter().map(|&column| cells[column].clone()).collect::<Vec<_>>())
    };
    let rows =
        cells.iter().zip(samples).map(|(cells, sample)| row(cells.clone()).style(style(text::tone(sample))));
    let rows: Vec<Row<'_>> = rows.collect();
    let lengths = columns.iter().map(|&column| Constraint::Length(widths[column]));
    let table = Table::new(rows, lengths)
        .header(row(HEADS.map(str::to_owned)).style(style(Tone::Heading)))
        .column_spacing(SPACING)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(Some(position));
    frame.render_stateful_widget(table, area, &mut state);
}

/// The columns that fit, in their order.
fn columns(widths: [u16; HEADS.len()], available: u16) -> Vec<usize> {
    let mut columns: Vec<usize> = (0..HEADS.len()).collect();
    for column in LESS_IMPORTANT {
        let needed: u32 = columns.iter().map(|&column| u32::from(widths[column]) + u32::from(SPACING)).sum();
        if needed <= u32::from(available) + u32::from(SPACING) {
            break;
        }
        columns.retain(|other| *other != column);
    }
    columns
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::{super::sample::tests::sample, *};

    fn key(code: KeyCode) -> KeyEvent {
        KeyEvent::new(code, KeyModifiers::NONE)
    }

    /// What stands on the screen, line by line, and which lines are marked.
    fn screen(view: &mut View, samples: &[Sample], size: (u16, u16)) -> (Vec<String>, Vec<usize>) {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
        terminal.draw(|frame| view.draw(frame, samples, "no array is served")).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..size.0).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        let is_marked = |y: &u16| buffer[(0, *y)].modifier.contains(Modifier::REVERSED);
        ((0..size.1).map(row).collect(), (0..size.1).filter(is_marked).map(usize::from).collect())
    }

    #[test]
    fn all_arrays_stand_below_each_other_with_one_marked() {
        let silent =
            Sample { control: "/x/c.sock".to_owned(), error: Some("silent".to_owned()), array: None };
        let samples = [sample("a"), sample("b"), silent];
        let mut view = View::default();
        let (lines, marked) = screen(&mut view, &samples, (160, 6));
        assert!(lines[0].starts_with("ARRAY  LEVEL  STATE "), "{lines:?}");
        let expected = "a      raid5  active, degraded  [Us_]    50       0.0       200 KiB/s  0 bytes/s  1.50 us, 1.99 us  -                \
            0.0        rebuild 25%, 3m 20s left";
        assert_eq!(lines[1], expected);
        assert!(lines[3].starts_with("c      -      no answer"), "{lines:?}");
        assert!(lines[5].starts_with("q quit"), "{lines:?}");
        assert_eq!(marked, [1]);
        for (code, row) in [(KeyCode::Up, 1), (KeyCode::Down, 2), (KeyCode::Down, 3), (KeyCode::Down, 3)] {
            assert!(!view.press(key(code), &samples));
            assert_eq!(screen(&mut view, &samples, (160, 6)).1, [row], "{code:?}");
        }
    }

    #[test]
    fn the_mark_stays_on_its_array_and_a_page_ends_with_it() {
        let (one, all) = ([sample("b")], [sample("a"), sample("b")]);
        let mut view = View::default();
        assert_eq!(screen(&mut view, &one, (160, 5)).1, [1]);
        assert_eq!(screen(&mut view, &all, (160, 5)).1, [2], "one came before it");
        view.press(key(KeyCode::Enter), &all);
        assert!(screen(&mut view, &all, (80, 30)).0[0].contains(" b "));
        let (lines, marked) = screen(&mut view, &all[..1], (80, 5));
        assert!(lines[0].starts_with("ARRAY") && marked == [1], "{lines:?}");
    }

    #[test]
    fn enter_shows_one_array_and_escape_all() {
        let samples = [sample("a"), sample("b")];
        let mut view = View::default();
        screen(&mut view, &samples, (80, 30));
        view.press(key(KeyCode::Down), &samples);
        view.press(key(KeyCode::Enter), &samples);
        let lines = screen(&mut view, &samples, (80, 30)).0;
        assert!(lines[0].contains(" b "), "{lines:?}");
        for words in
            ["active, degraded, raid5, 3 GiB", "  1  in-sync, slow  /dev/b", "  2  missing", "host over nbd"]
        {
            assert!(lines.iter().any(|line| line.contains(words)), "{words} is missing in {lines:?}");
        }
        // It is longer than this screen; the end is as far as it scrolls.
        for _ in 0..100 {
            view.press(key(KeyCode::Down), &samples);
            screen(&mut view, &samples, (80, 8));
        }
        let lines = screen(&mut view, &samples, (80, 8)).0;
        assert!(lines[5].contains("control socket") && lines[6].starts_with('└'), "{lines:?}");
        view.press(key(KeyCode::Up), &samples);
        assert!(!screen(&mut view, &samples, (80, 8)).0[5].contains("control socket"));
        view.press(key(KeyCode::Esc), &samples);
        let (lines, marked) = screen(&mut view, &samples, (80, 8));
        assert!(lines[0].starts_with("ARRAY") && marked == [2], "{lines:?}");
    }

    #[test]
    fn the_view_ends_with_q_or_control_c_and_with_nothing_else() {
        let mut view = View::default();
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(view.press(key(KeyCode::Char('q')), &[]) && view.press(control_c, &[]));
        for code in [KeyCode::Char('c'), KeyCode::Esc, KeyCode::Enter, KeyCode::Up, KeyCode::Down] {
            assert!(!view.press(key(code), &[]), "{code:?}");
        }
        let (lines, marked) = screen(&mut view, &[], (40, 3));
        assert_eq!((lines[0].as_str(), marked.len()), ("no array is served", 0));
    }

    #[test]
    fn a_narrow_terminal_shows_the_columns_that_matter() {
        let samples = [sample("a")];
        let lines = screen(&mut View::default(), &samples, (80, 4)).0;
        let expected = "a      active, degraded  [Us_]    50       0.0       rebuild 25%, 3m 20s left";
        assert_eq!(lines[1], expected, "{lines:?}");
        let lines = screen(&mut View::default(), &samples, (1, 1)).0;
        assert_eq!(lines.len(), 1, "nor does a tiny one end it");
        let lines = screen(&mut View::default(), &samples, (120, 4)).0;
        assert!(lines[0].contains("READS/s") && !lines[0].contains("LEVEL"), "{lines:?}");
    }
}
