{#- Written by `lakehouse scaffold`, its own while unchanged: f9d50b4595bbc92f -#}
{{ timeline(
  source_model='sat_user_details',
  src_pk='hk_user',
  src_hashdiff='hd_user_details',
  src_payload=['email', 'name', 'created_at'],
) }}
