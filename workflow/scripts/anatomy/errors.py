"""The one exception that is meant for a person."""


class StudyError(ValueError):
    """Something that the person who runs the study can put right.

    The message names the file, the place in it, what was found, what was expected and what to do. Command-line programs
    print it without a traceback; everything else is a defect of ours and keeps its traceback.
    """
