"""What a program made by PyInstaller needs of this package, beside what imports say.

PyInstaller reads the code of imports, so it does not see the modules that are imported by a name
that is known at run time only (engines, devices), and no files of data (the tables of hooks).
"""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules, copy_metadata

hiddenimports = collect_submodules("npugx_cache", filter=lambda name: "__pyinstaller" not in name)
datas = [*collect_data_files("npugx_cache"), *copy_metadata("npugx_cache")]
