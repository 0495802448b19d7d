{#- Written by `lakehouse scaffold`, its own while unchanged: 867c3201fb57ae81 -#}
{{ hub(src_pk='hk_user', src_nk='user_id', source_model=['stg_bank__users', 'stg_bank__accounts']) }}
