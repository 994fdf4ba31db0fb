-- The twins and the prelude are parts of scripts: what a part uses without defining it is defined by another.
-- Whole scripts are checked too, by scripts/luacheckrc.
std = "lua51"
max_line_length = 140
ignore = {
  "113/%u+", -- a constant, which the composer replaces by its number
  "211/[%l_]+", -- a function that another part calls
  "311", -- a result's default that a branch overwrites: it mirrors Go's zero values
  "542", -- an empty branch that says so in a comment
}
read_globals = {
  "redis", "struct", -- given by the server
  "call", "spack", "sunpack", "fmod", "text", "timetext", "div", "cdiv", "take", "never", "convert", "drain", -- given by prelude.lua
  "name_here", -- across.go writes the name of an algorithm in the place of "name"
}
