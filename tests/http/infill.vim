" Speaks to a server as llama.vim does: asks with curl, looks for the content without parsing, shows it as virtual text,
" asks for what would follow once a timer of 100 ms has run out, and inserts it. Writes what it saw as JSON lines to $INFILL_LOG.

call prop_type_add('infill', {'highlight': 'Comment'})
let s:busy = 0
let s:answers = []

function! s:Log(what) abort
  call writefile([json_encode(a:what)], $INFILL_LOG, 'a')
endfunction

function! s:Ask(ahead, n_predict) abort
  let l:lines = getline(1, line('.') - 1)
  let l:request = {
        \ 'id_slot': 0, 'input_prefix': join(l:lines, "\n") .. "\n",
        \ 'input_suffix': strpart(getline('.'), col('.') - 1) .. "\n" .. join(getline(line('.') + 1, '$'), "\n") .. "\n",
        \ 'prompt': strpart(getline('.'), 0, col('.') - 1) .. a:ahead,
        \ 'n_predict': a:n_predict, 'n_indent': indent('.'), 'top_k': 40, 'top_p': 0.9, 'stream': v:false,
        \ 'samplers': ['top_k', 'top_p', 'infill'], 'cache_prompt': v:true, 't_max_prompt_ms': 10000,
        \ 't_max_predict_ms': 10000, 'response_fields': ['content', 'timings/predicted_ms', 'tokens_cached'],
        \ 'input_extra': [{'filename': 'other.py', 'text': 'import os', 'time': 1}], 'model': '' }
  let s:busy = 1
  let l:job = job_start(['curl', '--silent', '--no-buffer', '--max-time', '30', '--request', 'POST', '--url', $INFILL_URL,
        \ '--header', 'Content-Type: application/json', '--data', '@-'], {'out_mode': 'raw', 'out_cb': function('s:Take')})
  let l:channel = job_getchannel(l:job)
  call ch_sendraw(l:channel, json_encode(l:request))
  call ch_close_in(l:channel)
endfunction

function! s:Take(channel, text) abort
  call add(s:answers, a:text)
  let s:busy = 0
endfunction

function! s:Answer() abort
  let l:waits = 0
  while s:busy && l:waits < 1500
    sleep 20m
    let l:waits += 1
  endwhile
  if s:busy || s:answers[-1] !~# '"content":"'
    call s:Log({'failure': s:busy ? 'no answer' : s:answers[-1]})
    qall!
  endif
  return json_decode(s:answers[-1])
endfunction

call cursor(2, 12)
call s:Ask('', 0)
call s:Log({'warm': s:Answer().content})
startinsert
call cursor(2, 12)
call s:Ask('', 64)
let s:shown = s:Answer()
let s:lines = split(s:shown.content, "\n", 1)
call prop_add(2, 12, {'type': 'infill', 'text': s:lines[0]})
let s:timer = timer_start(100, {-> s:Ask(s:shown.content, 64)})
let s:busy = 1
call s:Log({'shown': s:shown, 'virtual': len(prop_list(2))})
call s:Log({'ahead': s:Answer().content})
call setline(2, strpart(getline(2), 0, 11) .. s:lines[0] .. strpart(getline(2), 11))
call append(2, s:lines[1:])
call s:Log({'document': getline(1, '$')})
qall!
